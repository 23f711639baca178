// MessageLanes: point-to-point messages. One lane for each peer and direction, in which messages travel in
// issue order. Lanes move independently of each other and of collectives, on FIFOs of their own.
//
// A message is a row of slots, all with a word that holds its type, tag and count (board/tags.hpp).
// The receiver gives the next message of a peer to the earliest posted recv that asks for that peer,
// or any, and for that tag, or any: without tags the k-th send meets the k-th recv. A message that
// no posted recv asks for stays in its slots until one is waited for that does not ask for it; then
// it is set aside in memory of this rank, so that those after it can be looked at. At most
// kAsideBytes of a peer's messages are aside; one that has no room holds up those after it.
//
// lanes.cpp moves messages; lanes_matching.cpp finds out which recv a message is for. Library memory
// is sent by reference where the link allows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/board/tags.hpp"
#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"
#include "comm/host/slot_stores.hpp"
#include "kernels/reduce.hpp"
#include "transport/link.hpp"

namespace rondo::engine {

/// How many bytes of one peer's messages a rank sets aside, with kAsideEach for each.
inline constexpr uint64_t kAsideBytes = uint64_t{16} << 20;
inline constexpr uint64_t kAsideEach = 256;

/// One message, at one of its two ends; or a look at what would be received.
struct Transfer {
  bool sends;
  int peer;           // or kAnySource, until the message is there
  std::byte* buffer;  // only read by the sending end
  uint64_t count;     // of a recv: the room, until the message is there
  DataType type;
  int64_t timeout_ns = 0;
  void* stream = nullptr;  // on a device: where it is enqueued
  std::shared_ptr<Work::State> work{};
  int tag = 0;                   // or kAnyTag, until the message is there
  bool probes = false;           // a look: nothing is received
  bool once = false;             // of a look: it ends at once, and may have found nothing
  Envelope* envelope = nullptr;  // of a recv or a look: written when it ends well

  uint64_t bytes() const { return count * size_of(type); }
  uint64_t word() const { return board::message_word(type, count, tag); }
  board::Message shown() const {
    return {
        .sends = sends, .peer = peer, .type = type, .count = count, .tag = tag, .probes = probes};
  }
  /// "send(float, count 10) to rank 1".
  std::string to_string() const { return shown().to_string(); }

  // Set by the lanes.
  uint64_t number = 0;               // of all transfers of the rank, in the order of their calls
  bool matched = false;              // of a recv: its message is the next of `peer`
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
  bool empty() const { return active_.empty() && open_.empty(); }
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
  /// Puts on the board the first message of every lane, and what waits for any source.
  /// `since_ns`: when this wait began.
  void show(int64_t since_ns);
  /// Transfer::to_string(), and which message holds it up, if one does.
  std::string describe(const Transfer& transfer);
  /// Of the messages that can move, the one with the shortest timeout. REQUIRES: !empty().
  const Transfer& most_urgent() const;
  /// When the first slot that is known to be on its way becomes visible; 0: none is known.
  int64_t ready_at_ns() const;
  /// A message that waits for a peer for which `is_such` is true, and has no slot on its way; or
  /// null.
  const Transfer* find_waiting_for(const std::function<bool(int)>& is_such) const;

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  using Lane = std::list<Transfer>;
  /// A message that has come before its recv.
  struct Aside {
    Transfer transfer;
    std::unique_ptr<std::byte[]> memory;
  };
  /// What a peer has sent that is aside, in its order.
  struct Early {
    std::list<Aside> messages{};
    uint64_t bytes = 0;       // as kAsideBytes counts them
    bool is_filling = false;  // the last one is still coming
  };
  /// A recv that a message is for.
  struct Recipient {
    Lane* lane;  // null: there is none
    Lane::iterator at;
  };

  Lane& sends_to(int peer) { return lanes_[2 * static_cast<size_t>(peer)]; }
  Lane& recvs_from(int peer) { return lanes_[2 * static_cast<size_t>(peer) + 1]; }
  bool is_streaming(int peer) {
    const Lane& lane = recvs_from(peer);
    return !lane.empty() && lane.front().matched;
  }
  void add(size_t index, Lane& from, Lane::iterator transfer, bool first);
  Progress step(size_t index);
  Progress send(Transfer& transfer);
  Progress receive(Transfer& transfer);
  Progress move_to_self(const Transfer& transfer);
  void end(Lane& lane, Lane::iterator transfer);

  Progress meet(int peer);
  Progress meet_self();
  Progress meet_open();
  Progress take_from_aside(int peer);
  void set_aside(int peer, uint64_t word);
  Progress fill(int peer);
  Progress accept(int source, uint64_t word, Transfer& recv);
  Recipient find_posted(int source, int tag);
  bool is_awaited(int peer);
  bool is_looked_for(int source, int tag) const;
  bool has_room(int peer, uint64_t word) const;
  bool look();
  std::optional<uint64_t> find_word(int source, int tag);
  std::optional<uint64_t> next_word(int peer);
  const Transfer* find_open_waiting(const std::function<bool(int)>& is_such) const;
  void copy(const std::byte* from, std::byte* to, uint64_t bytes, bool nontemporal) const;
  void fill_slot(const std::byte* from, std::byte* slot, uint64_t bytes, int reader);
  Progress fail(Status status);

  transport::Transport& transport_;
  const board::Board& board_;
  const int channel_;
  const size_t cache_bytes_;
  const bool needs_progress_;  // of the transport's Capabilities
  const kernels::MoveFunction move_;
  std::vector<SlotStores> slot_stores_;  // SlotStores::kKinds for each peer
  std::vector<Lane> lanes_;              // 2 * peer: to that peer; 2 * peer + 1: from it
  std::vector<size_t> active_;           // lanes that are not empty
  Lane open_;                  // recvs from any source, and probes, in the order of their calls
  std::vector<Early> early_;   // by peer
  size_t asides_ = 0;          // in all
  bool may_be_aside_ = false;  // a recv or probe is new, and its message may be aside
  uint64_t calls_ = 0;
  int last_source_ = 0;  // of a recv or probe with any source: the next one begins after it
  std::list<Transfer> ended_;
  Status failure_;
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace rondo::engine
