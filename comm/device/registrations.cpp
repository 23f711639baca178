#include "comm/device/registrations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <set>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/connection/connection.hpp"
#include "rondo/log.hpp"

namespace rondo::device {

using transport::cuda_ipc::Allocation;
using transport::cuda_ipc::kMostRegistrations;
using transport::cuda_ipc::PeerMapping;
using transport::cuda_ipc::place_of;
using transport::cuda_ipc::RegistrationWord;

namespace {

// Above a word's place, so that a replayed graph finds out that its registration has ended.
constexpr uint32_t kMostNumbers = (1u << 24) - 1;

// Leaked on purpose: communicators may end while static objects are being destroyed.
struct RegisteredRanges {
  std::mutex mutex;
  std::multiset<std::pair<const std::byte*, size_t>> all;
};
RegisteredRanges& ranges() {
  static auto* const the_ranges = new RegisteredRanges;
  return *the_ranges;
}
void add_range(const std::byte* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  ranges().all.emplace(memory, bytes);
}
void remove_range(const std::byte* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  const auto found = ranges().all.find({memory, bytes});
  if (found != ranges().all.end()) ranges().all.erase(found);
}

// That holds all of the memory; null: none does.
template <class Registered>
auto* newest(Registered& all, const std::byte* memory, size_t bytes) {
  const auto found = std::find_if(all.rbegin(), all.rend(), [&](const auto& one) {
    return std::less_equal<>()(one.memory, memory) &&
           std::less_equal<>()(memory + bytes, one.memory + one.bytes);
  });
  return found != all.rend() ? &*found : nullptr;
}

template <class Parts, class OutcomeOf>
Status first_of(const Parts& parts, const OutcomeOf& outcome_of) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const RegistrationOutcome& outcome = outcome_of(parts[rank]);
    if (outcome.code == static_cast<int32_t>(Code::kOk)) continue;
    return {static_cast<Code>(outcome.code),
            fmt::format("register_device_memory: rank {}: {}", rank,
                        std::string(outcome.why, strnlen(outcome.why, sizeof outcome.why)))};
  }
  return {};
}

/// The driver or the system does not share mapped memory: the caller goes on without.
Status out_of_reach(uint32_t rank, const Status& why) {
  const bool exhausted = why.code() == Code::kResourceExhausted;
  return {
      exhausted ? Code::kResourceExhausted : Code::kUnavailable,
      fmt::format("rank {}'s memory: {}: operations on it go through slots", rank, why.message())};
}

}  // namespace

RegistrationOutcome RegistrationOutcome::of(const Status& status) {
  RegistrationOutcome outcome{.code = static_cast<int32_t>(status.code()), .why = {}};
  const std::string& why = status.message();
  std::copy_n(why.begin(), std::min(why.size(), sizeof outcome.why), outcome.why);
  return outcome;
}

Status first_error(std::span<const MemoryOffer> offers) {
  return first_of(offers, [](const MemoryOffer& offer) { return offer.outcome; });
}
Status first_error(std::span<const RegistrationOutcome> outcomes) {
  return first_of(outcomes, [](const RegistrationOutcome& outcome) { return outcome; });
}

bool is_registered(const std::byte* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  return std::any_of(ranges().all.begin(), ranges().all.end(), [&](const auto& range) {
    return std::less<>()(range.first, memory + bytes) &&
           std::less<>()(memory, range.first + range.second);
  });
}

Registrations::~Registrations() {
  const DeviceScope scope(*settings_.cuda, settings_.device);
  const OutsideCapture outside(*settings_.cuda);
  for (const Registered& one : all_) remove_range(one.memory, one.bytes);
  for (const auto* some : {&all_, &ended_}) {
    for (const Registered& one : *some) let_go(one);
  }
  if (pending_) let_go(*pending_);
  if (staging_ != nullptr) {
    (void)settings_.cuda->release_mapped(reinterpret_cast<std::byte*>(staging_));
  }
  if (table_ != nullptr) (void)settings_.cuda->release(reinterpret_cast<std::byte*>(table_));
}

MemoryOffer Registrations::offer(void* pointer, size_t bytes) {
  close_ended();
  own_pieces_.clear();
  MemoryOffer offer{};
  {
    const std::lock_guard lock(mutex_);
    for (const auto* some : {&all_, &ended_}) {
      for (const Registered& one : *some) {
        offer.taken[place_of(one.word) / 32] |= 1u << place_of(one.word) % 32;
      }
    }
  }
  offer.outcome = RegistrationOutcome::of(fill(offer, static_cast<std::byte*>(pointer), bytes));
  return offer;
}

Status Registrations::fill(MemoryOffer& offer, std::byte* memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) {
    return comm::refuse(fmt::format("{} bytes at {} are no memory", bytes, fmt::ptr(memory)));
  }
  CudaCalls& cuda = *settings_.cuda;
  const DeviceScope scope(cuda, settings_.device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(cuda);
  RONDO_TRY(outside.status());
  const auto allocation = RONDO_TRY(cuda.allocation_of(memory));
  if (allocation.device != settings_.device) {
    return comm::refuse(fmt::format(
        "{} is {}, and this communicator's memory is on GPU {}", fmt::ptr(memory),
        allocation.device < 0 ? "not device memory" : fmt::format("on GPU {}", allocation.device),
        settings_.device));
  }
  if (settings_.exports || settings_.between_gpus) {
    const bool shareable = RONDO_TRY(cuda.is_for_peers(memory));
    if (!shareable) return fill_pieces(offer, memory, bytes);
  }
  offer.offset = static_cast<uint64_t>(memory - allocation.base);
  if (allocation.bytes - offer.offset < bytes) {
    return comm::refuse(fmt::format("{} bytes at {} exceed their allocation, which ends after {}",
                                    bytes, fmt::ptr(memory), allocation.bytes - offer.offset));
  }
  offer.memory = memory;
  offer.bytes = bytes;
  if (settings_.exports) offer.handle = RONDO_TRY(cuda.export_memory(allocation.base));
  return {};
}

// The physical allocations that the memory lies in, as PyTorch's expandable segments consist of.
Status Registrations::fill_pieces(MemoryOffer& offer, std::byte* memory, size_t bytes) {
  constexpr size_t kMostPieces = 1024;
  const auto unavailable = [&](const std::string& why) {
    return Status(Code::kUnavailable,
                  fmt::format("{} {}: operations on it go through slots. cudaMalloc and "
                              "rondo::device_alloc give memory that can be registered",
                              fmt::ptr(memory), why));
  };
  size_t mapped = 0;
  // Counted, because memory + bytes may be past all addresses.
  for (size_t reached = 0; reached < bytes; reached = mapped - offer.offset) {
    std::byte* const next = memory + reached;
    Result<Allocation> piece = settings_.cuda->piece_at(next);
    if (!piece.ok()) return unavailable("cannot be shared: " + piece.status().message());
    if (piece->bytes == 0 && own_pieces_.empty()) {
      return unavailable("comes from a pool (cudaMallocAsync), which others cannot map");
    }
    if (piece->bytes == 0) {
      return comm::refuse(
          fmt::format("{} bytes at {} exceed what is mapped there, which ends after {}", bytes,
                      fmt::ptr(memory), reached));
    }
    if (piece->device != settings_.device) {
      return unavailable(
          "was mapped by cuMemMap, and created (cuMemCreate) without a file descriptor's type of "
          "handle or on another GPU, so that others cannot map it");
    }
    if (settings_.exchange == nullptr || settings_.process_has_gpus) {
      return unavailable(
          "was mapped by cuMemMap, for one GPU, and this process has ranks on several");
    }
    if (own_pieces_.size() == kMostPieces) {
      return unavailable(
          fmt::format("was mapped by cuMemMap, in more than {} pieces", kMostPieces));
    }
    if (own_pieces_.empty()) offer.offset = static_cast<uint64_t>(memory - piece->base);
    mapped += piece->bytes;
    own_pieces_.push_back(*piece);
  }
  offer.memory = memory;
  offer.bytes = bytes;
  offer.pieces = static_cast<uint32_t>(own_pieces_.size());
  offer.mapped = mapped;
  return {};
}

Result<uint32_t> Registrations::free_place(std::span<const MemoryOffer> offers) const {
  for (uint32_t place = 0; place < kMostRegistrations && count_ < kMostNumbers; ++place) {
    const bool taken = std::any_of(offers.begin(), offers.end(), [&](const MemoryOffer& offer) {
      return (offer.taken[place / 32] >> place % 32 & 1) != 0;
    });
    if (!taken) return place;
  }
  return Status(Code::kResourceExhausted,
                fmt::format("{} registrations have not ended on every rank; more are not possible: "
                            "end some by unregister_device_memory()",
                            kMostRegistrations));
}

// Every rank comes here with the same offers, and finds the same place.
Status Registrations::map(std::span<const MemoryOffer> offers) {
  Registered made;
  const MemoryOffer& own = offers[settings_.rank];
  made.memory = own.memory;
  made.bytes = own.bytes;
  const uint32_t place = RONDO_TRY(free_place(offers));
  made.word = ++count_ * kMostRegistrations + place;
  for (const MemoryOffer& offer : offers) made.parts.emplace_back(offer.memory, offer.bytes);
  const DeviceScope scope(*settings_.cuda, settings_.device);
  Status status = scope.status();
  if (status.ok() && settings_.exports) status = import(offers, made);
  pending_ = std::move(made);
  return status;
}

Status Registrations::import(std::span<const MemoryOffer> offers, Registered& made) {
  const OutsideCapture outside(*settings_.cuda);
  RONDO_TRY(outside.status());
  std::vector<PeerMapping> mappings;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const MemoryOffer& peer = offers[rank];
    int64_t distance = 0;
    if (settings_.processes[rank] != settings_.processes[settings_.rank]) {
      Result<Imported> imported = import(static_cast<uint32_t>(rank), peer);
      RONDO_TRY(imported.status());
      made.imported.push_back(*imported);
      made.parts[rank] = {imported->base + peer.offset, peer.bytes};
      // Not by subtracting pointers: the two have nothing in common.
      distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(imported->base) + peer.offset -
                                      reinterpret_cast<uintptr_t>(peer.memory));
    }
    mappings.push_back({.word = made.word, .distance = distance});
  }
  const std::lock_guard lock(table_mutex_);
  RONDO_TRY(need_table());
  return write_table(place_of(made.word), mappings);
}

Result<Registrations::Imported> Registrations::import(uint32_t rank, const MemoryOffer& peer) {
  CudaCalls& cuda = *settings_.cuda;
  const bool in_pieces = peer.pieces > 0;
  Result<std::byte*> base = in_pieces ? cuda.reserve(peer.mapped) : cuda.import_memory(peer.handle);
  // CUDA gives the same addresses to memory that was allocated anew in the same place; what was there
  // may still be open here, because kernels have used it (cudaErrorAlreadyMapped).
  if (!base.ok() && !in_pieces && await_ended()) base = cuda.import_memory(peer.handle);
  if (!base.ok()) return out_of_reach(rank, base.status());
  Imported made{.rank = rank, .base = *base, .reserved = peer.mapped, .pieces = peer.pieces};
  made.mapped.reserve(peer.pieces);
  return made;
}

uint32_t Registrations::piece_rounds(std::span<const MemoryOffer> offers) const {
  uint32_t most = 0;
  for (const MemoryOffer& offer : offers) most = std::max(most, offer.pieces);
  if (most == 0) return 0;
  const uint32_t at_once = settings_.exchange->most_at_once();
  return (most + at_once - 1) / at_once;
}

Status Registrations::send_pieces(uint32_t round) {
  if (own_pieces_.empty()) return {};
  const uint32_t at_once = settings_.exchange->most_at_once();
  const auto all = static_cast<uint32_t>(own_pieces_.size());
  PieceHeader header{};
  header.word = pending_->word;
  header.rank = settings_.rank;
  header.first = std::min(all, round * at_once);
  header.count = std::min(all - header.first, at_once);
  if (header.count == 0) return {};
  const DeviceScope scope(*settings_.cuda, settings_.device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(*settings_.cuda);
  RONDO_TRY(outside.status());
  std::vector<transport::UniqueFd> descriptors;
  for (uint32_t i = 0; i < header.count; ++i) {
    const Allocation& piece = own_pieces_[header.first + i];
    header.bytes[i] = piece.bytes;
    const Result<int> descriptor = settings_.cuda->export_piece(piece.base);
    if (!descriptor.ok()) return out_of_reach(settings_.rank, descriptor.status());
    descriptors.emplace_back(*descriptor);
  }
  const Status sent = settings_.exchange->send(header, descriptors);
  return sent.ok() ? sent : out_of_reach(settings_.rank, sent);
}

Status Registrations::map_pieces(uint32_t round, bool all_sent) {
  if (settings_.exchange == nullptr) return {};
  const auto received = RONDO_TRY(settings_.exchange->receive());
  if (!all_sent) return {};
  const DeviceScope scope(*settings_.cuda, settings_.device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(*settings_.cuda);
  RONDO_TRY(outside.status());
  for (const Pieces& each : received) RONDO_TRY(map_received(each));
  const uint32_t until_now = (round + 1) * settings_.exchange->most_at_once();
  for (const Imported& one : pending_->imported) {
    const size_t wanted = std::min(one.pieces, until_now);
    if (one.mapped.size() >= wanted) continue;  // a rank may be a round ahead
    return out_of_reach(
        one.rank, {Code::kUnavailable, fmt::format("of {} descriptors {} did not arrive", wanted,
                                                   wanted - one.mapped.size())});
  }
  return {};
}

Status Registrations::map_received(const Pieces& received) {
  const PieceHeader& header = received.header;
  const auto found = std::find_if(pending_->imported.begin(), pending_->imported.end(),
                                  [&](const Imported& one) { return one.rank == header.rank; });
  // Of a registration that has failed, or not what was offered: then some do not arrive.
  if (header.word != pending_->word || found == pending_->imported.end() ||
      found->mapped.size() != header.first || header.count > PieceHeader::kMostPieces) {
    return {};
  }
  if (received.is_cut_off || received.descriptors.size() != header.count) {
    return out_of_reach(header.rank, comm::system_status("receiving descriptors", EMFILE));
  }
  for (uint32_t i = 0; i < header.count; ++i) {
    const size_t bytes = header.bytes[i];
    if (bytes > found->reserved - found->mapped_bytes) return {};
    const Status mapped = settings_.cuda->map_piece(
        found->base + found->mapped_bytes, bytes, received.descriptors[i].get(), settings_.device);
    if (!mapped.ok()) return out_of_reach(header.rank, mapped);
    found->mapped.push_back(bytes);
    found->mapped_bytes += bytes;
  }
  return {};
}

Status Registrations::need_table() {
  if (table_ != nullptr) return {};
  CudaCalls& cuda = *settings_.cuda;
  const size_t ranks = settings_.processes.size();
  const size_t bytes = kMostRegistrations * ranks * sizeof(PeerMapping);
  if (staging_ == nullptr) {
    staging_ = reinterpret_cast<PeerMapping*>(
        RONDO_TRY(cuda.allocate_mapped(ranks * sizeof(PeerMapping))));
  }
  std::byte* const memory = RONDO_TRY(cuda.allocate(bytes));
  Status status = cuda.clear(memory, bytes, settings_.stream);
  if (status.ok()) status = cuda.synchronize(settings_.stream);
  if (!status.ok()) {
    (void)cuda.release(memory);
    return status;
  }
  table_ = reinterpret_cast<PeerMapping*>(memory);
  return {};
}

Status Registrations::write_table(uint32_t place, std::span<const PeerMapping> mappings) {
  {
    // A copy whose end could not be awaited may still read the staging memory.
    const OutsideCapture outside(*settings_.cuda);
    RONDO_TRY(outside.status());
    RONDO_TRY(await_copies(*settings_.cuda, settings_.stream, "a table of registered memory"));
  }
  std::copy(mappings.begin(), mappings.end(), staging_);
  return copy_and_wait(*settings_.cuda,
                       reinterpret_cast<std::byte*>(table_ + place * mappings.size()),
                       reinterpret_cast<const std::byte*>(staging_), mappings.size_bytes(),
                       settings_.stream, "a table of registered memory");
}

void Registrations::settle(bool all_mapped) {
  if (!pending_) return;
  if (all_mapped) add_range(pending_->memory, pending_->bytes);
  {
    const std::lock_guard lock(mutex_);
    (all_mapped ? all_ : ended_).push_back(std::move(*pending_));
  }
  pending_.reset();
  close_ended();
}

Status Registrations::remove(const void* pointer) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(all_.rbegin(), all_.rend(),
                                    [&](const Registered& one) { return one.memory == pointer; });
    if (found == all_.rend()) {
      return comm::refuse(
          fmt::format("unregister_device_memory: {} is not the beginning of registered memory of "
                      "this communicator",
                      fmt::ptr(pointer)));
    }
    remove_range(found->memory, found->bytes);
    ended_.push_back(std::move(*found));
    all_.erase(std::next(found).base());
  }
  close_ended();
  return {};
}

// Without mutex_ but for moments, because calls wait for that, and a copy may take ten seconds.
void Registrations::close_ended() {
  const auto copy_of_ended = [this] {
    const std::lock_guard lock(mutex_);
    return ended_;
  };
  if (copy_of_ended().empty()) return;
  const std::lock_guard table(table_mutex_);
  // Before the look at the kernels: what ends from here on may be in use again.
  const std::vector<Registered> ended = copy_of_ended();
  const DeviceScope scope(*settings_.cuda, settings_.device);
  const OutsideCapture outside(*settings_.cuda);
  const Result<bool> idle = settings_.is_idle();
  if (!scope.status().ok() || !outside.status().ok() || !idle.ok() || !*idle) return;
  const std::vector<PeerMapping> nothing(settings_.processes.size());
  for (const Registered& one : ended) {
    // A kernel must not find there what is closed: it stays until the next time, or the end.
    if (table_ != nullptr && !write_table(place_of(one.word), nothing).ok()) return;
    let_go(one);
    const std::lock_guard lock(mutex_);
    std::erase_if(ended_, [&](const Registered& each) { return each.word == one.word; });
  }
}

bool Registrations::await_ended() {
  constexpr int64_t kLongestNs = 1'000'000'000;  // ranks wait for this one meanwhile
  constexpr timespec kBetweenLooks{0, 100'000};
  const auto are_there = [this] {
    const std::lock_guard lock(mutex_);
    return !ended_.empty();
  };
  if (!are_there()) return false;
  const int64_t began = base::now_ns();
  while (are_there() && base::now_ns() - began < kLongestNs) {
    close_ended();
    nanosleep(&kBetweenLooks, nullptr);
  }
  return !are_there();
}

void Registrations::let_go(const Registered& one) {
  CudaCalls& cuda = *settings_.cuda;
  for (const Imported& each : one.imported) {
    if (each.reserved == 0) {
      (void)cuda.close_memory(each.base);
      continue;
    }
    std::byte* at = each.base;
    for (const size_t bytes : each.mapped) {
      (void)cuda.unmap_piece(at, bytes);
      at += bytes;
    }
    (void)cuda.free_reserved(each.base, each.reserved);
  }
}

RegistrationWord Registrations::find(const std::byte* memory, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const found = newest(all_, memory, bytes);
  return found != nullptr ? found->word : 0;
}

Registrations::Symmetric Registrations::find_symmetric(const std::byte* memory,
                                                       size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* const found = newest(all_, memory, bytes);
  if (found == nullptr) return {};
  return {.word = found->word,
          .offset = static_cast<size_t>(memory - found->memory),
          .parts = found->parts};
}

}  // namespace rondo::device
