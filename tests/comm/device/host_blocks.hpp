// The device engine's Block and Access on the host: threads as blocks, atomics as the memory that
// GPUs share.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>

#include "comm/device/device_group.hpp"
#include "kernels/cuda/dispatch.hpp"

namespace rondo::engine::test {

inline std::atomic<uint64_t> unordered_stores = 0;
// Moves to memory that the threads of a block share, where a GPU's cannot store.
inline std::atomic<uint64_t> misplaced_moves = 0;
inline thread_local bool unordered = false;

// A store releases by itself here: the thread sanitizer knows no fences. That the device has its
// fences is found out by counting what is told to peers while data written before has none.
struct HostAccess {
  static uint64_t peek(const uint64_t* word) {
    return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
  }
  static uint64_t load(const uint64_t* word) {
    return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
  }
  template <class T>
  static void write(T& to, const T& value) {
    to = value;
    unordered = true;
  }
  static void order(bool /*one_gpu*/) { unordered = false; }
  static void store(uint64_t* word, uint64_t value) {
    if (unordered) ++unordered_stores;
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  // Each half whole, and in no order.
  static LlLine load_ll(const LlLine* line) {
    auto& halves = const_cast<LlLine*>(line)->halves;
    return {{std::atomic_ref(halves[0]).load(std::memory_order_relaxed),
             std::atomic_ref(halves[1]).load(std::memory_order_relaxed)}};
  }
  static void store_ll(LlLine* line, const LlLine& value) {
    std::atomic_ref(line->halves[1]).store(value.halves[1], std::memory_order_relaxed);
    std::atomic_ref(line->halves[0]).store(value.halves[0], std::memory_order_relaxed);
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
  uint32_t thread, threads;
  uint64_t ns_per_look = 1;
  uint64_t clock = 0;

  uint32_t number() const { return thread; }
  uint32_t size() const { return threads; }
  void sync() {
    if (threads > 1) memory.barrier.arrive_and_wait();
  }
  BlockShared& shared() { return memory.shared; }
  uint32_t raise(uint32_t& word, uint32_t bits) { return std::atomic_ref(word).fetch_or(bits); }
  // Not the time but how often it was asked for: no test depends on how fast the machine is.
  uint64_t now_ns() { return clock += ns_per_look; }
  void rest() { std::this_thread::yield(); }
  void move(DataType type, ReduceOp op, const kernels::Move& whole) {
    const auto* const own = reinterpret_cast<const std::byte*>(&memory.shared);
    for (uint32_t j = 0; j < whole.destination_count; ++j) {
      if (whole.destinations[j] >= own && whole.destinations[j] < own + sizeof memory.shared) {
        ++misplaced_moves;
      }
    }
    kernels::cuda::move_share(type, op, whole, {.thread = thread, .threads = threads});
    unordered = true;  // whatever this thread wrote, or another one of the block
  }
};

}  // namespace rondo::engine::test
