#include "comm/device/registrations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "comm/base/refuse.hpp"
#include "rondo/log.hpp"

namespace rondo::device {

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

template <class Parts, class OutcomeOf>
Status first_of(const Parts& parts, const OutcomeOf& outcome_of) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const RegistrationOutcome& outcome = outcome_of(parts[rank]);
    if (outcome.code == static_cast<int32_t>(Code::kOk)) continue;
    return {static_cast<Code>(outcome.code),
            fmt::format("register_memory: rank {}: {}", rank,
                        std::string(outcome.why, strnlen(outcome.why, sizeof outcome.why)))};
  }
  return {};
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
  const auto allocation = RONDO_TRY(cuda.allocation_of(memory));
  if (allocation.device != settings_.device) {
    return comm::refuse(fmt::format(
        "{} is {}, and this communicator's memory is on GPU {}", fmt::ptr(memory),
        allocation.device < 0 ? "not device memory" : fmt::format("on GPU {}", allocation.device),
        settings_.device));
  }
  if (settings_.exports || settings_.between_gpus) {
    const bool shareable = RONDO_TRY(cuda.is_for_peers(memory));
    if (!shareable) {
      return {Code::kUnavailable,
              fmt::format("{} comes from a pool (cudaMallocAsync) or was mapped by cuMemMap, which "
                          "others cannot map: operations on it go through slots. cudaMalloc and "
                          "rondo::device_alloc give memory that can be registered",
                          fmt::ptr(memory))};
    }
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

Result<uint32_t> Registrations::free_place(std::span<const MemoryOffer> offers) const {
  for (uint32_t place = 0; place < kMostRegistrations && count_ < kMostNumbers; ++place) {
    const bool taken = std::any_of(offers.begin(), offers.end(), [&](const MemoryOffer& offer) {
      return (offer.taken[place / 32] >> place % 32 & 1) != 0;
    });
    if (!taken) return place;
  }
  return Status(Code::kResourceExhausted,
                fmt::format("{} registrations have not ended on every rank; more are not possible: "
                            "end some by unregister_memory()",
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
      Result<std::byte*> base = settings_.cuda->import_memory(peer.handle);
      if (!base.ok()) {
        return {base.status().code(),
                fmt::format("rank {}'s memory: {}", rank, base.status().message())};
      }
      made.imported.push_back(*base);
      // Not by subtracting pointers: the two have nothing in common.
      distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(*base) + peer.offset -
                                      reinterpret_cast<uintptr_t>(peer.memory));
    }
    mappings.push_back({.word = made.word, .distance = distance});
  }
  const std::lock_guard lock(mutex_);  // for close_ended(), which writes there too
  RONDO_TRY(need_table());
  return write_table(place_of(made.word), mappings);
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
      return comm::refuse(fmt::format(
          "unregister_memory: {} is not the beginning of registered memory of this communicator",
          fmt::ptr(pointer)));
    }
    remove_range(found->memory, found->bytes);
    ended_.push_back(std::move(*found));
    all_.erase(std::next(found).base());
  }
  close_ended();
  return {};
}

void Registrations::close_ended() {
  const std::lock_guard lock(mutex_);
  if (ended_.empty()) return;
  const DeviceScope scope(*settings_.cuda, settings_.device);
  const OutsideCapture outside(*settings_.cuda);
  const Result<bool> idle = settings_.is_idle();
  if (!scope.status().ok() || !outside.status().ok() || !idle.ok() || !*idle) return;
  const std::vector<PeerMapping> nothing(settings_.processes.size());
  std::erase_if(ended_, [&](const Registered& one) {
    // Else it stays until the end: a kernel must not find there what is closed.
    if (table_ != nullptr && !write_table(place_of(one.word), nothing).ok()) return false;
    let_go(one);
    return true;
  });
}

void Registrations::let_go(const Registered& one) {
  for (std::byte* memory : one.imported) (void)settings_.cuda->close_memory(memory);
}

RegistrationWord Registrations::find(const std::byte* memory, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Registered& one : all_) {
    if (std::less_equal<>()(one.memory, memory) &&
        std::less_equal<>()(memory + bytes, one.memory + one.bytes)) {
      return one.word;
    }
  }
  return 0;
}

}  // namespace rondo::device
