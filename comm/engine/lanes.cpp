#include "comm/engine/lanes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/engine/host_engine.hpp"

namespace rondo::engine {

namespace {

// Slots of one message before the other lanes have their turn.
constexpr int kSlotsInTurn = 16;
// What a reference covers at most: a receiver looks round after each.
constexpr uint64_t kReferencePiece = uint64_t{1} << 20;

constexpr int kTypeShift = 56;
uint64_t tag_of(const Transfer& t) { return static_cast<uint64_t>(t.type) << kTypeShift | t.count; }

std::string describe(DataType type, uint64_t count) {
  return fmt::format("{} {}", count, name(type));
}

}  // namespace

std::string Transfer::to_string() const {
  return recorder::Message{.sends = sends, .peer = peer, .type = type, .count = count}.to_string();
}

Lanes::Lanes(transport::Transport& transport, const recorder::Board& board, int channel,
             size_t cache_bytes)
    : transport_(transport),
      board_(board),
      channel_(channel),
      cache_bytes_(cache_bytes),
      references_(transport.capabilities().references),
      move_(kernels::move_function(DataType::kUint8, ReduceOp::kSum)),
      lanes_(2 * static_cast<size_t>(board.ranks())) {}

void Lanes::push(Transfer transfer) {
  const size_t index = 2 * static_cast<size_t>(transfer.peer) + (transfer.sends ? 0 : 1);
  if (transfer.sends && references_ && transfer.peer != board_.rank() &&
      transfer.bytes() >= kReferenceBytes) {
    transfer.reference = transport_.refer(transfer.buffer, transfer.bytes());
  }
  if (lanes_[index].empty()) active_.push_back(index);
  lanes_[index].push_back(std::move(transfer));
}

Progress Lanes::advance() {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    Lane& lane = lanes_[active_[i]];
    const Progress progress = step(lane.front());
    if (progress == Progress::kFailed) return progress;
    moved = moved || progress != Progress::kBlocked;
    if (progress == Progress::kDone) {
      ended_.push_back(std::move(lane.front()));
      lane.pop_front();
      if (lane.empty()) {
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
    }
    ++i;
  }
  if (active_.empty()) return Progress::kDone;
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

Progress Lanes::step(Transfer& transfer) {
  if (transfer.peer == board_.rank()) return move_to_self(transfer);
  return transfer.sends ? send(transfer) : receive(transfer);
}

// The end that comes second finds the other one, moves the data, and both end, each in its turn.
Progress Lanes::move_to_self(const Transfer& transfer) {
  if (transfer.slots > 0) return Progress::kDone;
  const auto self = 2 * static_cast<size_t>(board_.rank());
  if (lanes_[self].empty() || lanes_[self + 1].empty()) return Progress::kBlocked;
  Transfer& from = lanes_[self].front();
  Transfer& to = lanes_[self + 1].front();
  if (from.slots + to.slots > 0) return Progress::kBlocked;
  if (tag_of(from) != tag_of(to)) {
    return fail({Code::kMismatch,
                 fmt::format("rank {} sends {} to itself but receives {}", board_.rank(),
                             describe(from.type, from.count), describe(to.type, to.count))});
  }
  const uint64_t piece = std::min(kReferencePiece, from.bytes() - from.moved);
  copy(from.buffer + from.moved, to.buffer + from.moved, piece, from.bytes() > cache_bytes_);
  from.moved += piece;
  if (from.moved < from.bytes()) return Progress::kProgressed;
  from.slots = to.slots = 1;
  return Progress::kDone;
}

Progress Lanes::send(Transfer& t) {
  transport::Sender& sender = transport_.sender(channel_, t.peer);
  const uint64_t bytes = t.bytes();
  const bool refers = t.reference.kind != transport::Reference::kNone;
  bool moved = false;
  for (int budget = kSlotsInTurn; budget > 0 && (t.moved < bytes || t.slots == 0); --budget) {
    const uint64_t piece =
        std::min<uint64_t>(refers ? kReferencePiece : sender.capacity(), bytes - t.moved);
    if (refers) {
      transport::Reference reference = t.reference;
      reference.offset += t.moved;
      if (!sender.try_publish_reference(reference, piece, tag_of(t))) break;
    } else {
      std::byte* const slot = sender.try_acquire(piece);
      if (slot == nullptr) break;
      copy(t.buffer + t.moved, slot, piece, false);
      if (!sender.try_publish(piece, tag_of(t))) break;
    }
    // Relaxed: a statistic with one writer.
    bytes_sent_.store(bytes_sent() + piece, std::memory_order_relaxed);
    board_.ring(t.peer);
    t.moved += piece;
    ++t.slots;
    moved = true;
  }
  if (t.moved == bytes && t.slots > 0 && (!refers || sender.drained())) return Progress::kDone;
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

Progress Lanes::receive(Transfer& t) {
  transport::Receiver& receiver = transport_.receiver(channel_, t.peer);
  const uint64_t bytes = t.bytes();
  bool moved = false;
  for (int budget = kSlotsInTurn; budget > 0 && (t.moved < bytes || t.slots == 0); --budget) {
    transport::Delivery delivery;
    if (!receiver.try_peek(&delivery)) break;
    if (delivery.tag != tag_of(t)) {
      const auto type = static_cast<DataType>(delivery.tag >> kTypeShift);
      const uint64_t count = delivery.tag & ((uint64_t{1} << kTypeShift) - 1);
      return fail(
          {Code::kMismatch,
           fmt::format("rank {} sends {} to rank {}, which expects {}: the counts and types "
                       "of a send and its recv must be the same",
                       t.peer, describe(type, count), board_.rank(), describe(t.type, t.count))});
    }
    if (delivery.data == nullptr || delivery.bytes > bytes - t.moved ||
        (delivery.bytes == 0 && bytes > 0)) {
      return fail({Code::kSystem,
                   fmt::format("rank {} received a slot from rank {} that makes no sense in {}: "
                               "shared memory was overwritten, or the ranks run different versions "
                               "of rondo",
                               board_.rank(), t.peer, t.to_string())});
    }
    // What is referred to may be its rank's again: looked for before every piece, as
    // comm/README.md has it.
    if (moved && board_.has_error()) return fail(board_.error());
    copy(delivery.data, t.buffer + t.moved, delivery.bytes, bytes > cache_bytes_);
    receiver.release();
    board_.ring(t.peer);
    t.moved += delivery.bytes;
    ++t.slots;
    moved = true;
  }
  // What was read by reference may have been the caller's again, if its rank has failed meanwhile.
  if (t.moved == bytes && t.slots > 0) {
    return board_.has_error() ? fail(board_.error()) : Progress::kDone;
  }
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

void Lanes::copy(const std::byte* from, std::byte* to, uint64_t bytes, bool nontemporal) const {
  move_({.sources = &from,
         .destinations = &to,
         .source_count = 1,
         .destination_count = 1,
         .count = bytes,
         .divisor = 1,
         .nontemporal = nontemporal ? 1u : 0u});
}

Progress Lanes::fail(Status status) {
  failure_ = std::move(status);
  return Progress::kFailed;
}

std::vector<Transfer> Lanes::take_ended() { return std::exchange(ended_, {}); }

std::vector<Transfer> Lanes::take_pending() {
  std::vector<Transfer> pending;
  for (const size_t index : active_) {
    std::move(lanes_[index].begin(), lanes_[index].end(), std::back_inserter(pending));
    lanes_[index].clear();
  }
  active_.clear();
  return pending;
}

bool Lanes::is_read_by(int peer) const {
  const Lane& lane = lanes_[2 * static_cast<size_t>(peer)];
  return !lane.empty() && lane.front().slots > 0 &&
         lane.front().reference.kind != transport::Reference::kNone &&
         !transport_.sender(channel_, peer).drained();
}

void Lanes::show(int64_t since_ns) {
  uint32_t shown = 0;
  for (const size_t index : active_) {
    Transfer& t = lanes_[index].front();
    if (t.since_ns == 0 || t.shown_moved != t.moved) {
      t.since_ns = since_ns;
      t.shown_moved = t.moved;
    }
    board_.show_message(shown++, {.sends = t.sends,
                                  .peer = t.peer,
                                  .type = t.type,
                                  .count = t.count,
                                  .moved_bytes = t.moved,
                                  .since_ns = t.since_ns,
                                  .behind = static_cast<uint32_t>(lanes_[index].size() - 1)});
  }
  board_.show_messages(shown);
}

const Transfer& Lanes::most_urgent() const {
  const auto timeout = [this](size_t index) { return lanes_[index].front().timeout_ns; };
  return lanes_[*std::min_element(active_.begin(), active_.end(),
                                  [&](size_t a, size_t b) { return timeout(a) < timeout(b); })]
      .front();
}

const Transfer* Lanes::find_waiting_for(const std::function<bool(int)>& is_such) const {
  for (const size_t index : active_) {
    const Transfer& t = lanes_[index].front();
    if (t.peer == board_.rank() || !is_such(t.peer)) continue;
    if (t.sends || transport_.receiver(channel_, t.peer).ready_at_ns() == 0) return &t;
  }
  return nullptr;
}

int64_t Lanes::ready_at_ns() const {
  int64_t soonest = 0;
  for (const size_t index : active_) {
    const Transfer& t = lanes_[index].front();
    if (t.sends || t.peer == board_.rank()) return 0;
    const int64_t ready = transport_.receiver(channel_, t.peer).ready_at_ns();
    if (ready == 0) return 0;
    soonest = soonest == 0 ? ready : std::min(soonest, ready);
  }
  return soonest;
}

}  // namespace rondo::engine
