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

}  // namespace

MessageLanes::MessageLanes(transport::Transport& transport, const board::Board& board, int channel,
                           size_t cache_bytes)
    : transport_(transport),
      board_(board),
      channel_(channel),
      cache_bytes_(cache_bytes),
      needs_progress_(transport.capabilities().needs_progress),
      move_(kernels::move_function(DataType::kUint8, ReduceOp::kSum)),
      slot_stores_(SlotStores::kKinds * static_cast<size_t>(board.ranks())),
      lanes_(2 * static_cast<size_t>(board.ranks())),
      early_(static_cast<size_t>(board.ranks())) {
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
    transfer.number = ++calls_;
    may_be_aside_ = may_be_aside_ || (asides_ > 0 && !transfer.sends);
    if (transfer.probes || transfer.peer == kAnySource) {
      open_.splice(open_.end(), transfers, transfers.begin());
      continue;
    }
    const size_t index = 2 * static_cast<size_t>(transfer.peer) + (transfer.sends ? 0 : 1);
    if (transfer.sends && transfer.peer != board_.rank() && transfer.bytes() >= kReferenceBytes &&
        transport_.sender(channel_, transfer.peer).takes_references()) {
      transfer.reference = transport_.refer(transfer.buffer, transfer.bytes());
    }
    add(index, transfers, transfers.begin(), false);
  }
}

void MessageLanes::add(size_t index, Lane& from, Lane::iterator transfer, bool first) {
  Lane& lane = lanes_[index];
  if (lane.empty()) active_.push_back(index);
  lane.splice(first ? lane.begin() : lane.end(), from, transfer);
}

Progress MessageLanes::advance() {
  bool moved = false;
  if (may_be_aside_ || !open_.empty()) {
    const Progress met = meet_open();
    if (met == Progress::kFailed) return met;
    moved = met == Progress::kProgressed;
  }
  for (size_t i = 0; i < active_.size();) {
    Lane& lane = lanes_[active_[i]];
    const Progress progress = step(active_[i]);
    if (progress == Progress::kFailed) return progress;
    moved = moved || progress != Progress::kBlocked;
    if (progress == Progress::kDone) {
      end(lane, lane.begin());
      if (lane.empty()) {
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
    }
    ++i;
  }
  if (empty()) return Progress::kDone;
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

// Mostly there are no tags: the next message of a peer, once it is there, is the first recv's, as
// receive() finds out by itself.
Progress MessageLanes::step(size_t index) {
  Lane& lane = lanes_[index];
  Transfer& first = lane.front();
  const bool to_self = first.peer == board_.rank();
  if (first.sends && !to_self) return send(first);
  if (!to_self && (first.matched || (asides_ == 0 && open_.empty()))) return receive(first);
  if (!first.matched) {
    if (!open_.empty()) return Progress::kBlocked;  // meet_open() has looked
    const Progress met = to_self ? meet_self() : meet(first.peer);
    if (met != Progress::kDone) return met;
  }
  return to_self ? move_to_self(lane.front()) : receive(lane.front());
}

void MessageLanes::end(Lane& lane, Lane::iterator transfer) {
  if (transfer->envelope != nullptr && !transfer->probes) {
    *transfer->envelope = {.source = transfer->peer,
                           .tag = transfer->tag,
                           .count = transfer->count,
                           .type = transfer->type};
  }
  ended_.splice(ended_.end(), lane, transfer);
}

// The end that is stepped first moves the data; both end, each in its turn. REQUIRES: the first
// send and the first recv of this rank with itself are matched.
Progress MessageLanes::move_to_self(const Transfer& transfer) {
  if (transfer.slots > 0) return Progress::kDone;
  Transfer& from = sends_to(board_.rank()).front();
  Transfer& to = recvs_from(board_.rank()).front();
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
      if (!sender.try_publish_reference(reference, piece, t.word())) break;
    } else {
      if (!t.filled) {
        std::byte* const slot = sender.try_acquire(piece);
        if (slot == nullptr) break;
        fill_slot(t.buffer + t.moved, slot, piece, t.peer);
      }
      t.filled = !sender.try_publish(piece, t.word());
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
    if (delivery.tag != t.word()) {
      if (!t.matched) {  // it may be another recv's
        const Progress met = meet(t.peer);
        return met == Progress::kDone ? Progress::kProgressed : met;
      }
      return fail(board::uneven_message(t.peer, delivery.tag, board_.rank(), t.word()));
    }
    if (delivery.data == nullptr || delivery.bytes > bytes - t.moved ||
        (delivery.bytes == 0 && bytes > 0)) {
      return fail({Code::kSystem,
                   fmt::format("rank {} received a slot from rank {} that makes no sense in {}: "
                               "shared memory was overwritten, or the ranks run different versions "
                               "of rondo",
                               board_.rank(), t.peer, t.to_string())});
    }
    t.matched = true;
    // After an error the sender's caller may own the referred memory again, so every piece is read
    // only while there is none.
    if (moved && board_.has_error()) return fail(board_.read_error());
    copy(delivery.data, t.buffer + t.moved, delivery.bytes, bytes > cache_bytes_);
    receiver.release();
    board_.ring(t.peer);
    t.moved += delivery.bytes;
    ++t.slots;
    moved = true;
  }
  // If the sender failed meanwhile, its caller may have owned the memory while it was read here.
  if (t.moved == bytes && t.slots > 0 && (!needs_progress_ || receiver.flushed())) {
    return board_.has_error() ? fail(board_.read_error()) : Progress::kDone;
  }
  return moved ? Progress::kProgressed : Progress::kBlocked;
}

void MessageLanes::copy(const std::byte* from, std::byte* to, uint64_t bytes,
                        bool nontemporal) const {
  if (bytes == 0) return;  // of an empty message, whose buffers may be null
  move_({.sources = &from,
         .destinations = &to,
         .source_count = 1,
         .destination_count = 1,
         .count = bytes,
         .divisor = 1,
         .nontemporal = nontemporal ? 1u : 0u});
}

void MessageLanes::fill_slot(const std::byte* from, std::byte* slot, uint64_t bytes, int reader) {
  const bool shared = transport_.sender(channel_, reader).takes_references();
  if (!shared || bytes < SlotStores::kSmallest) return copy(from, slot, bytes, false);
  SlotStores& stores = slot_stores_[SlotStores::kKinds * static_cast<size_t>(reader) +
                                    SlotStores::kind(1, 1, bytes)];
  const SlotStores::StoreTurn turn = stores.next(bytes);
  stores.make(turn, bytes, [&] { copy(from, slot, bytes, turn.around); });
}

Progress MessageLanes::fail(Status status) {
  failure_ = std::move(status);
  return Progress::kFailed;
}

std::list<Transfer> MessageLanes::take_ended() { return std::exchange(ended_, {}); }

std::list<Transfer> MessageLanes::take_pending() {
  std::list<Transfer> pending;
  for (const size_t index : active_) pending.splice(pending.end(), lanes_[index]);
  pending.splice(pending.end(), open_);
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
  const auto show_one = [&](Transfer& t, size_t behind) {
    if (t.since_ns == 0 || t.shown_moved != t.moved) {
      t.since_ns = since_ns;
      t.shown_moved = t.moved;
    }
    board::Message message = t.shown();
    message.moved_bytes = t.moved;
    message.since_ns = t.since_ns;
    message.behind = static_cast<uint32_t>(behind);
    board_.show_message(shown++, message);
  };
  for (const size_t index : active_) show_one(lanes_[index].front(), lanes_[index].size() - 1);
  for (Transfer& transfer : open_) show_one(transfer, 0);
  board_.show_messages(shown);
}

const Transfer& MessageLanes::most_urgent() const {
  const Transfer* urgent = nullptr;
  const auto consider = [&urgent](const Transfer& t) {
    if (urgent == nullptr || t.timeout_ns < urgent->timeout_ns) urgent = &t;
  };
  for (const size_t index : active_) {
    const Transfer& front = lanes_[index].front();
    for (const Transfer& t : lanes_[index]) {
      // Behind the first one only recvs of other tags can be next.
      if (&t == &front || (!t.sends && t.tag != front.tag)) consider(t);
    }
  }
  for (const Transfer& t : open_) consider(t);
  return *urgent;
}

const Transfer* MessageLanes::find_waiting_for(const std::function<bool(int)>& is_such) const {
  for (const size_t index : active_) {
    const Transfer& t = lanes_[index].front();
    if (t.peer == board_.rank() || !is_such(t.peer)) continue;
    if (t.sends || transport_.receiver(channel_, t.peer).ready_at_ns() == 0) return &t;
  }
  return find_open_waiting(is_such);
}

int64_t MessageLanes::ready_at_ns() const {
  int64_t soonest = 0;
  if (!open_.empty()) {  // of what is on its way the first, whether it is asked for or not
    for (int peer = 0; peer < board_.ranks(); ++peer) {
      const int64_t ready =
          peer != board_.rank() ? transport_.receiver(channel_, peer).ready_at_ns() : 0;
      if (ready != 0) soonest = soonest == 0 ? ready : std::min(soonest, ready);
    }
    return soonest;
  }
  for (const size_t index : active_) {
    const Transfer& t = lanes_[index].front();
    if (t.sends || t.peer == board_.rank()) continue;
    const int64_t ready = transport_.receiver(channel_, t.peer).ready_at_ns();
    if (ready != 0) soonest = soonest == 0 ? ready : std::min(soonest, ready);
  }
  return soonest;
}

}  // namespace rondo::engine
