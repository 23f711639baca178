// One operation: what was asked, the plans it may follow, and where it stands. Data only; the runner moves it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/recorder/board.hpp"
#include "comm/schedule/program.hpp"
#include "kernels/reduce.hpp"
#include "rondo/communicator.hpp"

namespace rondo {

/// What a Work shares with the operation it stands for.
struct Work::State {
  std::atomic<bool> ended{false};  // release by whoever ends it, after status and times; acquire by readers
  Status status;
  std::atomic<int64_t> issued_ns{0}, started_ns{0}, ended_ns{0};

  void end(const Status& result, int64_t now_ns) {
    status = result;
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
  double predicted_us;
};

/// Which buffers of a rank its peers touch in a direct algorithm.
struct Offers {
  bool in, out;
};
Offers offers_of(Collective collective, Algorithm algorithm, int root, int rank);

enum class Phase : uint8_t { kDeciding, kRunning, kDraining };

/// REQUIRES: the buffers stay as they are until it has ended.
struct Operation {
  recorder::Call call;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  size_t in_bytes = 0, out_bytes = 0;
  size_t element_bytes = 1;
  const Plan* staged = nullptr;  // through slots; always there
  const Plan* direct = nullptr;  // if all ranks offer what it needs
  bool direct_only = false;      // the caller forced it: no falling back
  bool in_place = false;
  kernels::MoveFunction function = nullptr;
  uint32_t divisor = 1;      // in finishing moves
  bool nontemporal = false;  // results are larger than the caches
  uint64_t hash = 0;         // of call
  int64_t timeout_ns = 0;
  std::shared_ptr<Work::State> work;       // asynchronous ones only
  std::shared_ptr<const void> keep_alive;  // asynchronous ones: what staged and direct point into

  // Set by the runner.
  uint64_t sequence = 0;
  uint64_t tag = 0;  // travels with every slot
  Phase phase = Phase::kRunning;
  const Plan* plan = nullptr;
  int deciding_peer = 0;
  transport::Reference in_reference, out_reference;
};

}  // namespace rondo::engine
