// Walks the trainer's GPU kernels on the host: a block's threads are coroutines of one thread, which
// meet where the kernel says so. Between two meetings each runs to the end of its part before the
// next begins, in an order that the caller chooses: where a kernel lacks a meeting, some order reads
// what is not yet there. Shared memory begins as NaN.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "trainer/base/random.hpp"
#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda::testing {

enum class Order { kForwards, kBackwards, kShuffled };

class Walk {
 public:
  Walk(uint32_t threads, size_t shared_bytes, Order order)
      : threads_(threads),
        order_(order),
        shared_((shared_bytes + 15) / 16),
        fibres_(threads),
        exchange_{std::vector<uint64_t>(threads), std::vector<uint64_t>(threads)} {
    while (stacks().size() < threads) {
      stacks().push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    }
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  /// Runs one block to its end.
  template <class Kernel>
  void block(const Kernel& kernel, const Grid& index) {
    if (!shared_.empty()) std::memset(shared_.data(), 0xff, shared_.size() * sizeof(shared_[0]));
    index_ = index;
    body_ = [](Walk& walk, uint32_t thread, const void* any) {
      Block view{walk, thread};
      static_cast<const Kernel*>(any)->run(view);
    };
    kernel_ = &kernel;
    block_meeting_ = {threads_, 0, 0};
    warp_meetings_.assign(threads_ / kWarp, {kWarp, 0, 0});
    for (uint32_t t = 0; t < threads_; ++t) start(t);
    for (uint32_t left = threads_; left > 0;) left -= round();
  }

 private:
  static constexpr size_t kStackBytes = size_t{256} << 10;

  struct Meeting {
    uint32_t expected, arrived, generation;
  };
  struct Fibre {
    ucontext_t context;
    const Meeting* waits_at = nullptr;  // null: it can run
    uint32_t generation = 0;            // of that meeting
    uint32_t exchanges = 0;             // of the thread, by shuffles
    bool done = false;
  };
  /// What a kernel sees.
  struct Block {
    Walk& walk;
    uint32_t number;

    uint32_t thread() const { return number; }
    Grid index() const { return walk.index_; }
    void sync() { walk.meet(number, walk.block_meeting_); }
    template <class W>
    W shuffle_xor(W value, uint32_t mask) {
      // Two places in turn: no thread is two exchanges ahead of another one of its warp.
      std::vector<uint64_t>& values = walk.exchange_[walk.fibres_[number].exchanges++ % 2];
      std::memcpy(&values[number], &value, sizeof(W));
      walk.meet(number, walk.warp_meetings_[number / kWarp]);
      W other;
      std::memcpy(&other, &values[number ^ mask], sizeof(W));
      return other;
    }
    template <class W>
    W* shared() {
      return reinterpret_cast<W*>(walk.shared_.data());
    }
  };

  /// Kept for the next walk; never two at a time.
  static std::vector<std::unique_ptr<std::byte[]>>& stacks() {
    static std::vector<std::unique_ptr<std::byte[]>> kept;
    return kept;
  }

  static void enter(unsigned high, unsigned low, unsigned thread) {
    auto* const walk =
        reinterpret_cast<Walk*>(static_cast<uintptr_t>(high) << 32 | static_cast<uintptr_t>(low));
    walk->body_(*walk, thread, walk->kernel_);
    walk->fibres_[thread].done = true;
    swapcontext(&walk->fibres_[thread].context, &walk->scheduler_);
  }

  void start(uint32_t thread) {
    Fibre& fibre = fibres_[thread];
    fibre.waits_at = nullptr;
    fibre.done = false;
    fibre.exchanges = 0;
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = stacks()[thread].get();
    fibre.context.uc_stack.ss_size = kStackBytes;
    fibre.context.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&fibre.context, reinterpret_cast<void (*)()>(&Walk::enter), 3,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self), thread);
  }

  /// Every thread that can runs until it meets others; returns how many ended. Forwards and
  /// backwards each warp gets as far as it can before the next one begins; shuffled no thread is
  /// more than one meeting ahead.
  uint32_t round() {
    uint32_t ran = 0, ended = 0;
    if (order_ == Order::kShuffled) {
      std::vector<uint32_t> turns(threads_);
      std::iota(turns.begin(), turns.end(), 0u);
      for (size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[mix(++drawn_) % i]);
      for (const uint32_t t : turns) ran += step(t, ended);
    } else {
      for (uint32_t w = 0; w < threads_ / kWarp; ++w)
        ran += run_warp(in_order(w, threads_ / kWarp), ended);
    }
    if (ran == 0) throw std::logic_error("threads wait for others of the block, which have ended");
    return ended;
  }

  uint32_t in_order(uint32_t i, uint32_t count) const {
    return order_ == Order::kBackwards ? count - 1 - i : i;
  }

  uint32_t run_warp(uint32_t warp, uint32_t& ended) {
    uint32_t all = 0, ran = 1;
    while (ran > 0) {
      ran = 0;
      for (uint32_t i = 0; i < kWarp; ++i) ran += step(warp * kWarp + in_order(i, kWarp), ended);
      all += ran;
    }
    return all;
  }

  /// Runs the thread to its next meeting, if it does not wait at one; returns whether it ran.
  uint32_t step(uint32_t thread, uint32_t& ended) {
    Fibre& fibre = fibres_[thread];
    if (fibre.done) return 0;
    if (fibre.waits_at != nullptr && fibre.waits_at->generation == fibre.generation) return 0;
    fibre.waits_at = nullptr;
    swapcontext(&scheduler_, &fibre.context);
    ended += fibre.done ? 1 : 0;
    return 1;
  }

  void meet(uint32_t thread, Meeting& meeting) {
    // The last one waits for its turn, too: the order decides who is first after a meeting.
    fibres_[thread].generation = meeting.generation;
    fibres_[thread].waits_at = &meeting;
    if (++meeting.arrived == meeting.expected) {
      meeting.arrived = 0;
      ++meeting.generation;
    }
    swapcontext(&fibres_[thread].context, &scheduler_);
  }

  struct alignas(16) Line {
    std::byte bytes[16];
  };
  const uint32_t threads_;
  const Order order_;
  std::vector<Line> shared_;
  std::vector<Fibre> fibres_;
  std::vector<uint64_t> exchange_[2];
  Meeting block_meeting_{};
  std::vector<Meeting> warp_meetings_;
  ucontext_t scheduler_{};
  Grid index_;
  void (*body_)(Walk&, uint32_t, const void*) = nullptr;
  const void* kernel_ = nullptr;
  uint64_t drawn_ = 0;
};

/// Runs all blocks of a kernel, one after the other.
template <class Kernel>
void walk(const Kernel& kernel, Order order = Order::kForwards) {
  Walk threads(Kernel::kThreads, kernel.shared_bytes(), order);
  const Grid grid = kernel.grid();
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x) threads.block(kernel, {x, y, z});
    }
  }
}

}  // namespace rondo::trainer::cuda::testing
