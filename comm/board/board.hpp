// The board: what every rank is doing, in memory that all ranks of the host map. Where there are
// several hosts, each has a board with the rows of all ranks; those of other hosts are copies
// (mirror.hpp), some time old and written by the host's agent alone. It is how ranks compare
// operations, find out who waits for whom, share one error, offer their buffers to each other, and wake
// each other. It diagnoses nothing itself (comm/health does) and carries no payload.
//
// Layout, in this order; every entry on pairs of cache lines of its own (records: on lines):
//
//   what                               writer
//   BoardHeader, HostRecord[ranks]     the host's first rank, once
//   FirstError                         the first finder of an error, by compare-and-swap; verdict: the agent
//   RankState[ranks]                   that rank; life: anyone who finds evidence of its end
//   Doorbell[ranks]                    sleeping: that rank; value: anyone who wakes it
//   OperationRecord[ranks][kHistory]   that rank; entry = sequence % kHistory
//   MessageRecord[ranks][kMessages]    that rank, while it waits
//   Counts[ranks][2 to 64]             that rank: what its last all_to_all_v's exchange
//   ErrorText[ranks]                   that rank, while FirstError names none
//   HostRecord[ranks]                  see above
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/host_map.hpp"
#include "comm/board/observation.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"
#include "transport/link.hpp"

namespace rondo::board {

/// How many operations of each rank the board remembers.
inline constexpr uint64_t kHistory = 64;
/// Every so many operations a rank makes sure that it forgets nothing that others still need.
inline constexpr uint64_t kAskEvery = kHistory / 4;

/// What a call is: a collective of the caller's, or the exchange of a function of the communicator.
enum class FingerprintKind : uint8_t { kCollective, kSplit, kDuplicate, kRegister };

/// What a rank was asked to do: everything on which ranks must agree.
struct Fingerprint {
  Collective collective;
  DataType type;
  ReduceOp op;
  Algorithm algorithm;  // as forced by the caller; kAuto otherwise
  int32_t root;
  uint64_t count;  // of a _v collective: elements in all; of an all_to_all_v: 0, ranks differ
  /// CallOptions::layout. A _v collective whose counts and offsets are the same on all ranks has a
  /// hash of these here.
  uint64_t layout = 0;
  FingerprintKind kind = FingerprintKind::kCollective;  // the others are all_gathers

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
  /// The same number on two ranks exactly when they were asked for the same, but for hash
  /// collisions.
  uint64_t hash() const;
  /// "all_reduce(float, sum, count 1024)". `with_layout`: also where it is C order.
  std::string to_string(bool with_layout = false) const;
};
static_assert(kCollectives <= 0x20);  // pack_shape() keeps the kind in the same byte

/// One operation of one rank as another rank reads it.
struct Posted {
  Fingerprint call;
  transport::Reference in, out;
  double factor;  // of a scaled sum: what that rank's input is multiplied by
};

/// How many of the messages with which a rank waits the board shows.
inline constexpr uint32_t kMessages = 16;

/// A message with which a rank waits, as another one reads it.
struct Message {
  bool sends;  // or receives, or probes
  int peer;    // or kAnySource
  DataType type;
  uint64_t count;
  int tag = 0;          // or kAnyTag
  bool probes = false;  // type and count say nothing
  uint64_t moved_bytes = 0;
  int64_t since_ns = 0;  // CLOCK_MONOTONIC, when it was last seen to move, or the wait began
  uint32_t behind = 0;   // further messages that wait for this one to end

  /// "send(float, count 10) to rank 1", "recv(float, count 10, tag 7) from any rank".
  std::string to_string() const;
  /// The same, and "0 of 40 bytes, for 12.5 s; 2 more queued after it".
  std::string describe() const;
  /// For how long it has not moved.
  double seconds() const;
};

/// For readers that are no rank, such as rondo-status: whether and which board this is.
struct alignas(128) BoardHeader {
  static constexpr uint64_t kMagic = 0x6472616f426f6452;  // "RdoBoard"
  static constexpr uint32_t kVersion = 11;                // of everything that the board holds
  std::atomic<uint64_t> magic;                            // written last
  uint32_t version;
  uint32_t ranks;
  uint32_t host;   // whose ranks share this board
  char name[108];  // of the communicator, ends in 0; cut where it is longer
};
static_assert(sizeof(BoardHeader) == 128);

/// Where a rank is. Before the header's magic, and as trustworthy as the header.
struct alignas(64) HostRecord {
  uint32_t host;
  char name[60];  // of the host, ends in 0; cut where it is longer; empty where there is one host
};
static_assert(sizeof(HostRecord) == 64);

/// 64 bytes; eight words, so that a reader that races with the owner's next lap sees torn but
/// defined values, which the sequence word then exposes.
struct alignas(64) OperationRecord {
  std::atomic<uint64_t> sequence;  // 0: being written, or never used
  std::atomic<uint64_t> count;
  // Collective (upper three bits: the kind), type, op, algorithm, kinds of the references to in and out (4
  // bits each): a byte each; root: 24 bits.
  std::atomic<uint64_t> shape;
  std::atomic<uint64_t> arenas;  // of the references to in and out: 32 bits each
  std::atomic<uint64_t> in_offset;
  std::atomic<uint64_t> out_offset;
  std::atomic<uint64_t> layout;
  std::atomic<double> factor;
};
static_assert(sizeof(OperationRecord) == 64 && std::atomic<double>::is_always_lock_free);

struct alignas(128) RankState {
  std::atomic<uint64_t> posted;      // sequence of the last operation begun
  std::atomic<uint64_t> finished;    // sequence of the last operation ended
  std::atomic<uint64_t> heartbeat;   // moves while the rank is in a slow wait
  std::atomic<uint64_t> progress;    // moves while the rank works on an operation
  std::atomic<int32_t> waiting_for;  // the peer it is blocked on, or kAnySource; -1: none
  std::atomic<uint32_t> step;        // the program's step it is blocked in
  std::atomic<uint32_t> round;
  std::atomic<uint32_t> life;  // Life
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> withdrawn;  // 1: it failed, and touches no peer's buffer any more
  // While waiting_for names a rank, also:
  std::atomic<int64_t> waiting_since_ns;  // CLOCK_MONOTONIC, when anything last moved
  std::atomic<uint32_t> algorithm;        // Algorithm of the operation; kAuto: not yet decided
  std::atomic<uint32_t> messages;         // peers and directions in which a message waits; 0: none
  // Where `pid` is the rank's number: an inode; on another host a number of no namespace here.
  std::atomic<uint32_t> pid_namespace;
  // Where there are several hosts: 'T' or 't' while the host's agent sees that the process is stopped;
  // else 0. Its writer is the agent.
  std::atomic<uint32_t> process;
  // While the rank's process waits for long in another communicator: Observation::packed_process() of
  // the rank there that it waits for; 0: it does not.
  std::atomic<uint64_t> elsewhere;
  // The last split or duplicate, by its number from 1, of which this rank could not make its part,
  // and the Code: 0: none.
  std::atomic<uint64_t> failed_split;
  // Of a rank on another host: CLOCK_MONOTONIC, when its row last came.
  std::atomic<int64_t> heard_ns;
  // How many communicators this rank has got from Communicator::shrink(): the same number on all of
  // their members.
  std::atomic<uint64_t> shrunk;
};
static_assert(sizeof(RankState) ==
              128);  // prefetchers fetch pairs of lines: other writers stay away

/// See MessageRecord::end.
inline constexpr uint32_t kEnds = 4;
inline constexpr uint32_t kAnyEnd = ~uint32_t{0} - kEnds + 1;

/// One message with which a rank waits. Single facts: a reader may see two messages' mixed.
struct alignas(32) MessageRecord {
  std::atomic<uint64_t> what;  // message_word()
  std::atomic<uint64_t> moved_bytes;
  std::atomic<int64_t> since_ns;
  std::atomic<uint32_t> end;  // kEnds * peer, or kAnyEnd; to receive: one more; to probe: two more
  std::atomic<uint32_t> behind;
};
static_assert(sizeof(MessageRecord) == 32);

struct alignas(128) Doorbell {
  std::atomic<uint32_t> sleeping;  // threads of the rank that sleep, or are about to
  std::atomic<uint32_t> value;     // the futex word
};

/// Which rank's ErrorText is the error that all ranks report. A finder names itself when its text
/// is whole, so that one that is held up, or dies, while it writes hides no error and delays
/// nobody.
struct alignas(128) FirstError {
  std::atomic<uint32_t> finder;  // rank + 1; 0: no error
  /// Across hosts: the finder of the error that all hosts report, which may be another than this
  /// host's; 0: not yet known. The agent of rank 0's host decides.
  std::atomic<uint32_t> verdict;
  /// CLOCK_MONOTONIC, when this host's agent last looked: one that does not look brings no verdict.
  /// 0: there is none; kAgentEnded.
  std::atomic<int64_t> agent_ns;

  static constexpr int64_t kAgentEnded = 1;
};
static_assert(sizeof(FirstError) == 128);

/// Which host each rank is on, and what the hosts are called.
struct Places {
  base::HostMap hosts;
  std::vector<std::string> names;  // by host

  bool several() const { return hosts.hosts() > 1; }
};

struct alignas(128) ErrorText {
  int32_t code;
  char message[1020];
};
static_assert(sizeof(ErrorText) == 1024);

/// The board as anybody may read it, rank or not. It may change under the reader, who sees single
/// facts and no moment's truth. Thread-safe.
class BoardView {
 public:
  static size_t bytes_needed(int ranks);

  /// REQUIRES: `base` holds the bytes_needed(ranks) bytes of a board, and outlives the view.
  BoardView(const std::byte* base, int ranks);

  int ranks() const { return ranks_; }
  const RankState& state(int peer) const { return states_[peer]; }
  /// Acquire: everything that `peer` sent and posted before its goodbye is there.
  Life life(int peer) const {
    return static_cast<Life>(states_[peer].life.load(std::memory_order_acquire));
  }
  /// Whether `peer` has said goodbye.
  bool has_left(int peer) const { return life(peer) == Life::kGone; }
  /// Whether `peer` is dead, or its host does not answer.
  bool is_dead_or_lost(int peer) const {
    return life(peer) == Life::kDead || life(peer) == Life::kLost;
  }

  /// That operation of `peer`, unless it has not begun or is too long ago.
  std::optional<Posted> read(int peer, uint64_t sequence) const;

  /// Of the messages with which `peer` waits, the first ones of each peer and direction, kMessages
  /// at most: state(peer).messages says how many there are.
  std::vector<Message> messages(int peer) const;

  /// What `peer` does now, and what all ranks do.
  Observation observe(int peer) const;
  std::vector<Observation> observe_all() const;

  /// The error all ranks report, or ok.
  Status error() const { return has_error() ? read_error() : Status(); }
  bool has_error() const { return first_error_->finder.load(std::memory_order_relaxed) != 0; }
  /// The error as far as it is known now: see Board::has_verdict(). REQUIRES: has_error().
  Status read_error() const;

  /// Which host each rank is on, as the host's first rank has written it; from a board that a stranger
  /// reads, as far as it makes sense. A single host has no name.
  Places read_places() const;

  /// The last operations of every rank, and the messages with which it waits, as text.
  std::string to_string() const;

 protected:
  OperationRecord* records(int peer) const {
    return records_ + static_cast<uint64_t>(peer) * kHistory;
  }

  // Not const: Board writes through them. A mere view does not.
  int ranks_;
  BoardHeader* header_;
  FirstError* first_error_;
  RankState* states_;
  Doorbell* doorbells_;
  OperationRecord* records_;
  MessageRecord* messages_;
  std::atomic<uint64_t>* counts_;
  ErrorText* error_texts_;
  HostRecord* host_records_;
};

/// One rank's view of the board. Thread rule: post, finish, show_message and show_messages belong
/// to whoever advances this rank's operations (one thread at a time); everything else may be called
/// by any thread.
class Board : public BoardView {
 public:
  /// REQUIRES: `base` holds bytes_needed(ranks) bytes, zeroed before the first rank came, and
  /// outlives the Board. `name`: the communicator's, for who reads the board from outside. `places`:
  /// default: all ranks share a host.
  Board(std::byte* base, int ranks, int rank, std::string_view name = {}, Places places = {});

  int rank() const { return rank_; }
  const Places& places() const { return places_; }
  bool is_local(int peer) const { return places_.hosts.share_host(peer, rank_); }
  /// "rank 2 (pid 17)"; where there are several hosts, "rank 2 (pid 17 on host b)".
  std::string name_of(int peer) const;

  /// This rank begins operation `sequence` (1, 2, 3, ...) and offers its buffers.
  void post(uint64_t sequence, const Fingerprint& call, const transport::Reference& in,
            const transport::Reference& out, double factor = 1) {
    OperationRecord& r = own_records_[sequence % kHistory];
    r.sequence.store(0, std::memory_order_relaxed);
    // Release on every word keeps it behind the sequence's 0 above, for read() on other ranks; on
    // x86 it costs nothing.
    r.count.store(call.count, std::memory_order_release);
    r.shape.store(pack_shape(call) | pack_kinds(in, out), std::memory_order_release);
    r.arenas.store(pair(in.arena, out.arena), std::memory_order_release);
    r.in_offset.store(in.offset, std::memory_order_release);
    r.out_offset.store(out.offset, std::memory_order_release);
    r.layout.store(call.layout, std::memory_order_release);
    r.factor.store(factor, std::memory_order_release);
    r.sequence.store(
        sequence, std::memory_order_release);  // pairs with the acquire in has_posted() and read()
    own_->posted.store(sequence, std::memory_order_release);
  }
  void finish(uint64_t sequence) { own_->finished.store(sequence, std::memory_order_release); }

  /// After post(): whether there is an error already. A rank that fails waits for peers that have
  /// posted its last operation, which may be touching its buffers (may_touch). One that posts later
  /// than it looked finds the error here: store and load of both are sequentially consistent.
  bool is_posted_after_error(uint64_t sequence) const {
    own_->posted.store(sequence, std::memory_order_seq_cst);
    return first_error_->finder.load(std::memory_order_seq_cst) != 0;
  }

  /// This rank waits with a message, `index` of `all`; those beyond kMessages are only counted.
  void show_message(uint32_t index, const Message& message) const;
  void show_messages(uint32_t all) const { own_->messages.store(all, std::memory_order_release); }

  /// This rank waits for `peer`. Relaxed: read by other ranks for diagnosis only.
  void show_wait(int peer, uint32_t step, uint64_t round, int64_t since_ns) const {
    own_->waiting_since_ns.store(since_ns, std::memory_order_relaxed);
    own_->waiting_for.store(peer, std::memory_order_relaxed);
    own_->step.store(step, std::memory_order_relaxed);
    own_->round.store(static_cast<uint32_t>(round), std::memory_order_relaxed);
  }

  /// This rank waits for news of `peer`. What it showed before stays, because others may walk along it.
  void show_wait_for_row(int peer) const {
    own_->waiting_since_ns.store(1, std::memory_order_relaxed);
    if (own_->waiting_for.load(std::memory_order_relaxed) < 0) {
      own_->waiting_for.store(peer, std::memory_order_relaxed);
    }
  }

  /// This rank has moved data. Not a read-modify-write: it is on the hot path, and with several
  /// channels a lost count is as good as a kept one.
  void progressed() const {
    own_->progress.store(own_->progress.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }
  /// This rank touches no peer's buffer any more. Release: its last accesses come before.
  void withdraw() const { own_->withdrawn.store(1, std::memory_order_release); }
  bool has_withdrawn(int peer) const {
    return states_[peer].withdrawn.load(std::memory_order_acquire) != 0;
  }
  /// Notes what is known of `peer`. Weaker evidence than what is known already changes nothing.
  void learn(int peer, Life life) const;
  /// The same of this host's processes. `find_ended`: the first rank from its argument on whose process
  /// has ended, or -1.
  void learn_deaths(const std::function<int(int)>& find_ended) const;
  /// Whether `peer`, inside operation `sequence`, may still touch this rank's buffers.
  bool may_touch(int peer, uint64_t sequence) const {
    const RankState& s = states_[peer];
    return life(peer) == Life::kAlive && s.withdrawn.load(std::memory_order_acquire) == 0 &&
           s.posted.load(std::memory_order_seq_cst) >= sequence &&
           s.finished.load(std::memory_order_acquire) < sequence;
  }

  /// What post() of operation `sequence`, and post_counts() where `counts`, may overwrite is of
  /// interest to ranks that have not begun this operation yet. 0: to nobody. Most posts ask for
  /// nothing, and one in a few covers those that follow.
  uint64_t needed_before_post(uint64_t sequence, bool counts) const {
    uint64_t needed = 0;
    // The last post before the next question overwrites sequence - 1 + kAskEvery - kHistory.
    if (sequence % kAskEvery == 0 && sequence >= kHistory) needed = sequence + kAskEvery - kHistory;
    if (counts && sequence > counts_kept_) needed = std::max(needed, sequence - counts_kept_ + 1);
    return needed;
  }
  /// The last operation that `peer` has begun.
  uint64_t last_begun(int peer) const {
    return states_[peer].posted.load(std::memory_order_acquire);
  }

  /// Whether `peer` has posted `sequence` (or is already past it).
  bool has_posted(int peer, uint64_t sequence) const {
    // Acquire: pairs with post(); what the peer wrote into its input before posting is visible
    // afterwards.
    return records(peer)[sequence % kHistory].sequence.load(std::memory_order_acquire) >= sequence;
  }
  /// Before post() of an all_to_all_v: the elements that this rank sends to, and expects of, every
  /// rank.
  void post_counts(uint64_t sequence, std::span<const uint64_t> sends,
                   std::span<const uint64_t> expects) const;
  /// What `from` sends to `to` as each of the two has said; nothing where one of them has not, or
  /// too long ago.
  struct Exchange {
    uint64_t sends, expects;
  };
  std::optional<Exchange> exchange(int from, int to, uint64_t sequence) const;

  RankState& state(int peer) const { return states_[peer]; }
  Doorbell& doorbell(int peer) const { return doorbells_[peer]; }

  /// Wakes `peer`'s sleeping threads, if any: one relaxed load when there are none. A sleeper that
  /// this load misses has not yet passed its membarrier and will look again (wait.hpp).
  void ring(int peer) const {
    if (doorbells_[peer].sleeping.load(std::memory_order_relaxed) != 0) wake(peer);
  }
  void wake(int peer) const;
  void wake_all() const;

  /// Makes `status` the error of all ranks unless there is one already, and wakes everybody. Returns
  /// the error as it is known now. Never waits: a rank stops first, and then asks for the verdict.
  Status raise(const Status& status) const;
  /// The same without the result.
  void propose(const Status& status) const;
  /// Whether it is known which error all ranks report; also true without an error. Never waits. Across
  /// hosts it is false until rank 0's host has sent its verdict. After two seconds of asking, or if this
  /// host's agent has ended or stands still, this host's own error becomes the verdict for its ranks.
  bool has_verdict() const;
  /// The error all ranks report, or ok. Waits until has_verdict(): only for a thread that has stopped
  /// touching peers' memory, and that serves no other communicator.
  Status error() const;
  /// Across hosts: whether this host's agent has not ended and does not stand still.
  bool agent_looks(int64_t now_ns) const;
  /// Across hosts: the process of this host's agent is known to have ended.
  void agent_has_ended() const;
  /// Across hosts: whether news of other hosts comes by that rank's process (control/agent.hpp).
  bool hears_through(int rank) const {
    return places_.several() &&
           (rank == 0 || rank == places_.hosts.ranks_on(places_.hosts.host_of(rank_)).front());
  }
  /// With what the errors that this rank raises begin: "rows: ". Before the first operation.
  void begin_errors_with(std::string words) { errors_begin_ = std::move(words); }

 private:
  friend class Mirror;

  static uint64_t pack_shape(const Fingerprint& call) {
    return static_cast<uint64_t>(call.collective) | static_cast<uint64_t>(call.kind) << 5 |
           static_cast<uint64_t>(call.type) << 8 | static_cast<uint64_t>(call.op) << 16 |
           static_cast<uint64_t>(call.algorithm) << 24 |
           static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 40;
  }
  static uint64_t pack_kinds(const transport::Reference& in, const transport::Reference& out) {
    return static_cast<uint64_t>(in.kind) << 32 | static_cast<uint64_t>(out.kind) << 36;
  }
  static uint64_t pair(uint32_t low, uint32_t high) {
    return low | static_cast<uint64_t>(high) << 32;
  }
  /// Sequence, then what is sent by destination, then what is expected by source.
  std::atomic<uint64_t>* counts(int peer, uint64_t sequence) const;
  std::optional<uint64_t> read_count(int peer, uint64_t sequence, size_t index) const;

  int rank_;
  Places places_;
  uint64_t counts_kept_;  // of a rank's last all_to_all_v's
  RankState* own_;
  OperationRecord* own_records_;
  std::string errors_begin_;
  // When the first of this rank's threads asked for the verdict, or 0.
  mutable std::atomic<int64_t> asked_ns_{0};
  mutable std::mutex raising_;  // of this rank's threads: they share its ErrorText
};

}  // namespace rondo::board
