// The device engine's Block and Access on the host: threads as blocks, atomics as the memory that GPUs
// share.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>

#include "comm/engine/device_engine.hpp"

namespace rondo::engine::test {

// A store releases by itself here: the thread sanitizer knows no fences.
struct HostAccess {
  static uint64_t peek(const uint64_t* word) {
    return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
  }
  static uint64_t load(const uint64_t* word) {
    return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
  }
  static void order() {}
  static void store(uint64_t* word, uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
};

// What the threads of one block share.
struct HostBlockMemory {
  explicit HostBlockMemory(uint32_t threads) : barrier(threads) {}
  BlockShared shared{};
  std::barrier<> barrier;
};

struct HostBlock {
  static constexpr uint32_t kPolls = 16;
  HostBlockMemory& memory;
  uint32_t number, size;
  uint64_t ns_per_look = 1;
  uint64_t clock = 0;

  bool leads() const { return number == 0; }
  void sync() {
    if (size > 1) memory.barrier.arrive_and_wait();
  }
  BlockShared& shared() { return memory.shared; }
  // Not the time but how often it was asked for: no test depends on how fast the machine is.
  uint64_t now_ns() { return clock += ns_per_look; }
  void rest() { std::this_thread::yield(); }
  void move(DataType type, ReduceOp op, const kernels::Move& whole) {
    kernels::cuda::move_share(type, op, whole, {.thread = number, .threads = size});
  }
};

}  // namespace rondo::engine::test
