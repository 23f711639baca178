#include "comm/host/lanes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/board/tags.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/host_engine.hpp"

namespace rondo::engine {

namespace {

// How many slots of a lane move before it is the next lane's turn.
constexpr int kSlotsInTurn = 16;
// The most that one reference covers: a receiver checks for errors after each.
constexpr uint64_t kReferencePiece = uint64_t{1} << 20;

uint64_t tag_of(const Transfer& t) { return board::message_tag(t.type, t.count); }

}  // namespace

std::string Transfer::to_string() const {
  return board::Message{.sends = sends, .peer = peer, .type = type, .count = count}.to_string();
}

MessageLanes::MessageLanes(transport::Transport& transport, const board::Board& board, int channel,
                           size_t cache_bytes)
    : transport_(transport),
      board_(board),
      channel_(channel),
      cache_bytes_(cache_bytes),
      needs_progress_(transport.capabilities().needs_progress),
      move_(kernels::move_function(DataType::kUint8, ReduceOp::kSum)),
      lanes_(2 * static_cast<size_t>(board.ranks())) {
  active_.reserve(lanes_.size());
  // Here, because a transport may allocate a link when it is first asked for it.
  for (int peer = 0; peer < board.ranks(); ++peer) {
    if (peer == board.rank()) continue;
    (void)transport.sender(channel, peer);
    (void)transport.receiver(channel, peer);
  }
}

// Allocates nothing: a message that has been taken does not get lost.
void MessageLanes::push(std::list<Transfer>& transfers) {
  while (!transfers.empty()) {
    Transfer& transfer = transfers.front();
    const size_t index = 2 * static_cast<size_t>(transfer.peer) + (transfer.sends ? 0 : 1);
    if (transfer.sends && transfer.peer != board_.rank() && transfer.bytes() >= kReferenceBytes &&
        transport_.sender(channel_, transfer.peer).takes_references()) {
      transfer.reference = transport_.refer(transfer.buffer, transfer.bytes());
    }
    Lane& lane = lanes_[index];
    if (lane.empty()) active_.push_back(index);
    lane.splice(lane.end(), transfers, transfers.begin());
  }
}

Progress MessageLanes::advance() {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    Lane& lane = lanes_[active_[i]];
    const Progress progress = step(lane.front());
    if (progress == Progress::kFailed) return progress;
    moved = moved || progress != Progress::kBlocked;
    if (progress == Progress::kDone) {
      ended_.splice(ended_.end(), lane, lane.begin());
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

Progress MessageLanes::step(Transfer& transfer) {
  if (transfer.peer == board_.rank()) return move_to_self(transfer);
  return transfer.sends ? send(transfer) : receive(transfer);
}

// The end that is stepped second finds the other one and moves the data; both end, each in its
// turn.
Progress MessageLanes::move_to_self(const Transfer& transfer) {
  if (transfer.slots > 0) return Progress::kDone;
  const auto self = 2 * static_cast<size_t>(board_.rank());
  if (lanes_[self].empty() || lanes_[self + 1].empty()) return Progress::kBlocked;
  Transfer& from = lanes_[self].front();
  Transfer& to = lanes_[self + 1].front();
  if (from.slots + to.slots > 0) return Progress::kBlocked;
  if (tag_of(from) != tag_of(to)) {
    return fail({Code::kMismatch,
                 fmt::format("rank {} sends {} to itself but receives {}", board_.rank(),
                             board::describe_tag(tag_of(from)), board::describe_tag(tag_of(to)))});
  }
  const uint64_t piece = std::min(kReferencePiece, from.bytes() - from.moved);
  copy(from.buffer + from.moved, to.buffer + from.moved, piece, from.bytes() > cache_bytes_);
  from.moved += piece;
  if (from.moved < from.bytes()) return Progress::kProgressed;
  from.slots = to.slots = 1;
  return Progress::kDone;
}

Progress MessageLanes::send(Transfer& t) {
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
      if (!t.filled) {
        std::byte* const slot = sender.try_acquire(piece);
        if (slot == nullptr) break;
        copy(t.buffer + t.moved, slot, piece, false);
      }
      t.filled = !sender.try_publish(piece, tag_of(t));
      if (t.filled) break;
    }
    // Relaxed: a statistic with one writer.
    bytes_sent_.store(bytes_sent() + piece, std::memory_order_relaxed);
    board_.ring(t.peer);
    t.moved += piece;
    ++t.slots;
    moved = true;
  }
  const bool sent = t.moved == bytes && t.slots > 0;
  if (sent && (!refers || sender.drained()) && (!needs_progress_ || sender.flushed())) {
    return Progress::kDone;
  }
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

Progress MessageLanes::receive(Transfer& t) {
  transport::Receiver& receiver = transport_.receiver(channel_, t.peer);
  const uint64_t bytes = t.bytes();
  bool moved = false;
  for (int budget = kSlotsInTurn; budget > 0 && (t.moved < bytes || t.slots == 0); --budget) {
    transport::Delivery delivery;
    if (!receiver.try_peek(&delivery)) break;
    if (delivery.tag != tag_of(t)) {
      return fail(board::uneven_message(t.peer, delivery.tag, board_.rank(), tag_of(t)));
    }
    if (delivery.data == nullptr || delivery.bytes > bytes - t.moved ||
        (delivery.bytes == 0 && bytes > 0)) {
      return fail({Code::kSystem,
                   fmt::format("rank {} received a slot from rank {} that makes no sense in {}: "
                               "shared memory was overwritten, or the ranks run different versions "
                               "of rondo",
                               board_.rank(), t.peer, t.to_string())});
    }
    // After an error the sender's caller may own the referred memory again, so every piece is read
    // only while there is none.
    if (moved && board_.has_error()) return fail(board_.error());
    copy(delivery.data, t.buffer + t.moved, delivery.bytes, bytes > cache_bytes_);
    receiver.release();
    board_.ring(t.peer);
    t.moved += delivery.bytes;
    ++t.slots;
    moved = true;
  }
  // If the sender failed meanwhile, its caller may have owned the memory while it was read here.
  if (t.moved == bytes && t.slots > 0 && (!needs_progress_ || receiver.flushed())) {
    return board_.has_error() ? fail(board_.error()) : Progress::kDone;
  }
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

void MessageLanes::copy(const std::byte* from, std::byte* to, uint64_t bytes,
                        bool nontemporal) const {
  move_({.sources = &from,
         .destinations = &to,
         .source_count = 1,
         .destination_count = 1,
         .count = bytes,
         .divisor = 1,
         .nontemporal = nontemporal ? 1u : 0u});
}

Progress MessageLanes::fail(Status status) {
  failure_ = std::move(status);
  return Progress::kFailed;
}

std::list<Transfer> MessageLanes::take_ended() { return std::exchange(ended_, {}); }

std::list<Transfer> MessageLanes::take_pending() {
  std::list<Transfer> pending;
  for (const size_t index : active_) pending.splice(pending.end(), lanes_[index]);
  active_.clear();
  return pending;
}

bool MessageLanes::is_read_by(int peer) const {
  const Lane& lane = lanes_[2 * static_cast<size_t>(peer)];
  return !lane.empty() && lane.front().slots > 0 &&
         lane.front().reference.kind != transport::Reference::kNone &&
         !transport_.sender(channel_, peer).drained();
}

void MessageLanes::show(int64_t since_ns) {
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

const Transfer& MessageLanes::most_urgent() const {
  const auto timeout = [this](size_t index) { return lanes_[index].front().timeout_ns; };
  return lanes_[*std::min_element(active_.begin(), active_.end(),
                                  [&](size_t a, size_t b) { return timeout(a) < timeout(b); })]
      .front();
}

const Transfer* MessageLanes::find_waiting_for(const std::function<bool(int)>& is_such) const {
  for (const size_t index : active_) {
    const Transfer& t = lanes_[index].front();
    if (t.peer == board_.rank() || !is_such(t.peer)) continue;
    if (t.sends || transport_.receiver(channel_, t.peer).ready_at_ns() == 0) return &t;
  }
  return nullptr;
}

int64_t MessageLanes::ready_at_ns() const {
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
