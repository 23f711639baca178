// MessageLanes: point-to-point messages. One lane for each peer and direction, in which messages travel in
// issue order: the k-th send to a peer meets its k-th recv from this rank. Lanes move independently
// of each other and of collectives, on FIFOs of their own: in whatever order ranks issue their
// sends and receives, a message waits only for its counterpart.
//
// A message is a row of slots, all tagged with its type and count, by which the receiver recognises
// a counterpart that does not fit. Library memory is sent by reference where the link allows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"
#include "kernels/reduce.hpp"
#include "transport/link.hpp"

namespace rondo::engine {

/// One message, at one of its two ends.
struct Transfer {
  bool sends;
  int peer;
  std::byte* buffer;  // only read by the sending end
  uint64_t count;
  DataType type;
  int64_t timeout_ns;
  void* stream = nullptr;  // on a device: where it is enqueued
  std::shared_ptr<Work::State> work{};

  uint64_t bytes() const { return count * size_of(type); }
  /// "send(float, count 10) to rank 1".
  std::string to_string() const;

  // Set by the lanes.
  transport::Reference reference{};  // of a sender
  uint64_t moved = 0;                // bytes
  uint64_t slots = 0;
  bool filled = false;       // of a sender: its next slot is filled, but not published yet
  int64_t since_ns = 0;      // when the wait began in which the board first showed
  uint64_t shown_moved = 0;  // so many bytes as moved
};

/// Thread rule: one thread at a time.
class MessageLanes {
 public:
  /// `channel`: of the transport, for the lanes alone. Messages larger than `cache_bytes` are
  /// written with non-temporal stores.
  MessageLanes(transport::Transport& transport, const board::Board& board, int channel,
               size_t cache_bytes);

  /// Takes them all.
  void push(std::list<Transfer>& transfers);
  bool empty() const { return active_.empty(); }
  /// Moves a few slots of every lane in turn. kDone: no message is left. kFailed: see failure().
  /// Where the transport needs progress(), the caller calls it before.
  Progress advance();

  /// The messages that have ended well since the last call.
  std::list<Transfer> take_ended();
  /// All messages that have not ended: the communicator has failed, and they move no more.
  std::list<Transfer> take_pending();
  /// Whether `peer` may be reading a buffer of this rank that was sent by reference.
  bool is_read_by(int peer) const;

  /// Why advance() failed. Not yet on the board.
  const Status& failure() const { return failure_; }
  /// Puts the first message of every lane on the board. `since_ns`: when this wait began.
  void show(int64_t since_ns);
  /// Of the first messages of all lanes, the one with the shortest timeout. REQUIRES: !empty().
  const Transfer& most_urgent() const;
  /// When the first slot becomes visible; 0: unknown. REQUIRES: !empty().
  int64_t ready_at_ns() const;
  /// A message that waits for a peer for which `is_such` is true, and has no slot on its way; or
  /// null.
  const Transfer* find_waiting_for(const std::function<bool(int)>& is_such) const;

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  using Lane = std::list<Transfer>;
  Progress step(Transfer& transfer);
  Progress send(Transfer& transfer);
  Progress receive(Transfer& transfer);
  Progress move_to_self(const Transfer& transfer);
  void copy(const std::byte* from, std::byte* to, uint64_t bytes, bool nontemporal) const;
  Progress fail(Status status);

  transport::Transport& transport_;
  const board::Board& board_;
  const int channel_;
  const size_t cache_bytes_;
  const bool needs_progress_;  // of the transport's Capabilities
  const kernels::MoveFunction move_;
  std::vector<Lane> lanes_;     // 2 * peer: to that peer; 2 * peer + 1: from it
  std::vector<size_t> active_;  // lanes that are not empty
  std::list<Transfer> ended_;
  Status failure_;
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace rondo::engine
