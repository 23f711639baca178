// One operation: what was asked, the plans it may follow, and where it stands. Data only; the
// runner moves it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/this_process.hpp"
#include "comm/board/board.hpp"
#include "comm/schedule/program.hpp"
#include "kernels/reduce.hpp"
#include "rondo/communicator.hpp"

namespace rondo {

/// What a Work shares with the operation it stands for.
struct Work::State {
  /// Release by whoever ends it, after the rest; acquire by readers.
  std::atomic<uint32_t> ended{0};     // a futex word
  std::atomic<uint32_t> sleepers{0};  // threads in sleep()
  Status status;
  /// Of an open group: set before the caller has the Work, cleared when the group begins.
  std::atomic<bool> collected{false};
  std::atomic<int64_t> issued_ns{0}, started_ns{0}, ended_ns{0};
  Envelope envelope{};  // of a recv that has ended well
  const base::OwnProcess process = base::known_process();

  /// Threads of this process in wait_any(), and how many Works have ended while there were some.
  inline static std::atomic<uint32_t> waiting_for_any{0}, ended_meanwhile{0};

  /// Whether this is a forked child's copy of one that had not ended: what would end it is its parent's.
  bool is_orphaned() const { return process.forks != base::this_process.forks && !ended; }

  /// Nothing would end a wait of the thread that has the group open.
  bool is_unbegun() const { return collected && !ended; }

  void end(Status result, int64_t now_ns) {
    status = std::move(result);
    ended_ns.store(now_ns, std::memory_order_relaxed);
    // Sequentially consistent, as are the next loads: of this thread and one that enters sleep() or
    // wait_any() at the same moment, one at least sees the other.
    ended.store(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
    if (waiting_for_any.load(std::memory_order_seq_cst) == 0) return;
    ended_meanwhile.fetch_add(1, std::memory_order_release);  // pairs with wait_any()
    ended_meanwhile.notify_all();
  }

  /// Until it has ended, or sooner: the thread's wait callback is called in between.
  void sleep();

 private:
  void wake();
};

}  // namespace rondo

namespace rondo::engine {

/// A program for one rank, and what running it takes. Shared by every operation of the same shape.
struct ExecutionPlan {
  Algorithm algorithm;
  schedule::Program program;
  bool direct;                                      // uses peers' buffers in place
  bool by_ll = false;                               // on a device: Protocol::kLl
  int chunks = 0;                                   // of the schedule
  algorithms::Touched touched_in{}, touched_out{};  // by peers: these must have been offered
};

/// From so many bytes on, a slot of In is sent by reference where it can be. Below, a copy into the
/// slot is cheaper than the reader's misses on the sender's memory and the drain at the end.
inline constexpr size_t kReferenceBytes = 4096;

/// How far ranks reach into each other's buffers: of a shape, at most; of an operation, as decided.
/// In that order: what comes later includes what comes before. README.md explains the words.
enum class Sharing : uint8_t {
  kSlots,       // not at all: all data passes through slots
  kReferences,  // some rank's slots may carry references to its In
  kMapped,      // direct, in buffers that peers have mapped
  kCopied,      // direct, and the kernel copies where a buffer is not mapped (Reference::kProcess)
};

/// Everything about an operation but its buffers, made once and shared by all operations of the
/// same shape.
struct Prepared {
  board::Fingerprint call;
  bool in_place;
  uint64_t hash;  // of call
  size_t element_bytes, in_bytes, out_bytes;
  ReduceOp op;  // the kernel's
  kernels::MoveFunction function;
  uint32_t divisor;   // in finishing moves
  uint64_t identity;  // the operator's, in the first element_bytes bytes
  bool scaled;        // inputs are multiplied by their rank's Operation::factor when read
  bool nontemporal;   // results are larger than the caches
  schedule::BlockLayout layout;  // of a _v collective
  Sharing sharing;               // at most; other ranks' in_place may differ, this does not
  bool required = false;         // the caller forced `direct`: it is refused rather than staged
  bool withheld = false;         // this rank's buffers are in place, which `direct` does not stand
  ExecutionPlan staged;          // through slots
  /// If all ranks offer what it needs; null: staged is as good, or the only one.
  std::unique_ptr<ExecutionPlan> direct;
};

enum class Phase : uint8_t { kNew, kPosting, kDeciding, kRunning };

/// REQUIRES: the buffers stay as they are until it has ended, and so does what `prepared` points
/// to.
struct Operation {
  const Prepared* prepared = nullptr;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t timeout_ns = 0;
  double factor = 1;                           // kMulSum only
  void* stream = nullptr;                      // on a device: where it is enqueued
  std::shared_ptr<Work::State> work;           // asynchronous ones only
  std::shared_ptr<const Prepared> keep_alive;  // of `prepared`; null where the caller keeps it

  // Set by the runner.
  Phase phase = Phase::kNew;
  Sharing sharing = Sharing::kSlots;
  uint64_t sequence = 0;
  uint64_t tag = 0;     // travels with every slot
  uint64_t needed = 0;  // the operation that everybody has to have begun before this one is posted
  const ExecutionPlan* plan = nullptr;
  int asked_peer = 0;  // while posting and deciding: the next one to ask, counted from this rank on
  transport::Reference in_reference, out_reference;
  Status outcome;  // once it has ended: not ok if it was refused on every rank alike
};

}  // namespace rondo::engine
