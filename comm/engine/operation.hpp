// One operation: what was asked, the plans it may follow, and where it stands. Data only; the
// runner moves it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/recorder/board.hpp"
#include "comm/schedule/program.hpp"
#include "kernels/reduce.hpp"
#include "rondo/communicator.hpp"

namespace rondo {

/// What a Work shares with the operation it stands for.
struct Work::State {
  /// Release by whoever ends it, after status and times; acquire by readers.
  std::atomic<bool> ended{false};
  Status status;
  std::atomic<int64_t> issued_ns{0}, started_ns{0}, ended_ns{0};

  void end(Status result, int64_t now_ns) {
    status = std::move(result);
    ended_ns.store(now_ns, std::memory_order_relaxed);
    ended.store(true, std::memory_order_release);
    ended.notify_all();
  }
};

}  // namespace rondo

namespace rondo::engine {

/// A program for one rank, and what running it takes. Shared by every operation of the same shape.
struct Plan {
  Algorithm algorithm;
  schedule::Program program;
  bool direct;  // uses peers' buffers in place: every rank in `offers` must have offered them
  bool by_ll = false;  // on a device: Protocol::kLl
};

/// Which buffers of a rank its peers touch in a direct algorithm.
struct Offers {
  bool in, out;
};
Offers offers_of(Collective collective, Algorithm algorithm, int root, int rank);

/// From so many bytes on, a slot of In is sent by reference where it can be. Below, a copy into the
/// slot is cheaper than the reader's misses on the sender's memory and the drain at the end.
inline constexpr size_t kReferenceBytes = 4096;

/// Everything about an operation but its buffers, made once and shared by all operations of the
/// same shape.
struct Prepared {
  recorder::Call call;
  bool in_place;
  uint64_t hash;  // of call
  size_t element_bytes, in_bytes, out_bytes;
  kernels::MoveFunction function;
  uint32_t divisor;         // in finishing moves
  bool scaled;              // inputs are multiplied by their rank's Operation::factor when read
  bool nontemporal;         // results are larger than the caches
  schedule::Layout layout;  // of a _v collective
  bool direct_only;         // the caller forced it: no falling back to staged
  /// Plain memory, too, goes direct, because `direct` only copies and the kernel can do that
  /// between processes (Reference::kProcess).
  bool by_process_copy;
  bool offers;  // false: this rank's buffers are in place, which `direct` does not stand
  /// Peers look at this operation's post as soon as it is there, or into its buffers. False for
  /// what is small, so that it costs little.
  bool shows;
  Plan staged;  // through slots
  /// If all ranks offer what it needs; null: staged is as good, or the only one.
  std::unique_ptr<Plan> direct;
};

enum class Phase : uint8_t { kPosting, kDeciding, kRunning, kDraining };

/// REQUIRES: the buffers stay as they are until it has ended, and so does what `prepared` points
/// to.
struct Operation {
  const Prepared* prepared = nullptr;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t timeout_ns = 0;
  double factor = 1;                           // kScaledSum only
  void* stream = nullptr;                      // on a device: where it is enqueued
  std::shared_ptr<Work::State> work;           // asynchronous ones only
  std::shared_ptr<const Prepared> keep_alive;  // of `prepared`; null where the caller keeps it

  // Set by the runner.
  uint64_t sequence = 0;
  uint64_t tag = 0;     // travels with every slot
  uint64_t needed = 0;  // the operation that everybody has to have begun before this one is posted
  Phase phase = Phase::kRunning;
  bool too_late = false;  // an error was there when it had been posted: nothing of it may move
  const Plan* plan = nullptr;
  int asked_peer = 0;  // while posting and deciding: who comes next
  transport::Reference in_reference, out_reference;
};

}  // namespace rondo::engine
