// Lanes: point-to-point messages. One lane for each peer and direction, in which messages travel in
// issue order: the k-th send to a peer meets its k-th recv from this rank. Lanes move independently
// of each other and of collectives, on FIFOs of their own, so whatever order ranks issue their
// sends and receives in, nothing waits for anything but its own counterpart.
//
// A message is a row of slots, all tagged with its type and count, so that the receiver can tell a
// counterpart that does not fit. Library memory is sent by reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"
#include "comm/recorder/board.hpp"
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
  int64_t since_ns = 0;      // the beginning of the wait in which it was first shown as it is,
  uint64_t shown_moved = 0;  // with so many bytes moved
};

/// Thread rule: one thread at a time.
class Lanes {
 public:
  /// `channel`: of the transport, used by nobody else. Messages beyond `cache_bytes` are received
  /// around the caches.
  Lanes(transport::Transport& transport, const recorder::Board& board, int channel,
        size_t cache_bytes);

  void push(Transfer transfer);
  bool empty() const { return active_.empty(); }
  /// Moves what can be moved, a little of every lane in turn. kDone: nothing is left. kFailed: see
  /// failure().
  Progress advance();

  /// Those that have ended since the last call, successfully.
  std::vector<Transfer> take_ended();
  /// All that have not: the communicator has failed, and they are not touched any more.
  std::vector<Transfer> take_pending();
  /// Whether `peer` may be reading a buffer of this rank that was sent by reference.
  bool is_read_by(int peer) const;

  /// Why advance() failed. Not yet on the board.
  const Status& failure() const { return failure_; }
  /// Puts the messages that are their lanes' first on the board, of a wait that began then.
  void show(int64_t since_ns);
  /// REQUIRES: !empty(). Of the messages that are their lanes' first, the one with the shortest
  /// timeout.
  const Transfer& most_urgent() const;
  /// REQUIRES: !empty(). When the first slot is known to become visible (0: unknown).
  int64_t ready_at_ns() const;
  /// A message that waits for a peer of which `is_such` is true, and none of whose slots is on its
  /// way; or null.
  const Transfer* find_waiting_for(const std::function<bool(int)>& is_such) const;

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  using Lane = std::deque<Transfer>;
  // Lane 2 * peer: to that peer; 2 * peer + 1: from it.
  const Lane& lane(size_t index) const { return lanes_[index]; }
  Progress step(Transfer& transfer);
  Progress send(Transfer& transfer);
  Progress receive(Transfer& transfer);
  Progress move_to_self(const Transfer& transfer);
  void copy(const std::byte* from, std::byte* to, uint64_t bytes, bool nontemporal) const;
  Progress fail(Status status);

  transport::Transport& transport_;
  const recorder::Board& board_;
  const int channel_;
  const size_t cache_bytes_;
  const bool references_;
  const kernels::MoveFunction move_;
  std::vector<Lane> lanes_;
  std::vector<size_t> active_;  // lanes that are not empty
  std::vector<Transfer> ended_;
  Status failure_;
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace rondo::engine
