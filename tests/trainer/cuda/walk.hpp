// Walks the trainer's GPU kernels on the host: a block's threads are coroutines of one thread, which
// meet where the kernel says so. Between two meetings each runs to the end of its part before the
// next begins, in an order that the caller chooses: where a kernel lacks a meeting, some order reads
// what is not yet there. Shared memory begins as NaN. Asynchronous copies happen at once, when they are
// waited for, or now this way and now that, by the same choice.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/trainer/cuda/fibre.hpp"
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
        states_(threads),
        exchange_{std::vector<Shown>(threads), std::vector<Shown>(threads)} {
    while (fibres().size() < threads) fibres().push_back(std::make_unique<Fibre>());
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
    try {
      for (uint32_t left = threads_; left > 0;) left -= round();
    } catch (...) {
      fibres().clear();  // some have not ended
      throw;
    }
  }

 private:
  struct Meeting {
    uint32_t expected, arrived, generation;
  };
  /// What a thread shows its warp.
  struct Shown {
    uint64_t words[3];
  };
  struct Copy {
    void* to;
    const void* from;
  };
  struct ThreadState {
    const Meeting* waits_at = nullptr;  // null: it can run
    uint32_t generation = 0;            // of that meeting
    uint32_t exchanges = 0;             // of the thread, with its warp
    std::vector<Copy> copies;           // under way
    Fibre* fibre = nullptr;             // on which it runs; null: it has not begun
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
      W other;
      std::memcpy(&other, &show(value)[(number ^ mask) % kWarp], sizeof(W));
      return other;
    }
    /// Copies at once, or as late as it may: a kernel must bear both.
    void copy_async(void* to, const void* from, bool inside) {
      const Copy copy{to, inside ? from : nullptr};
      if (walk.copies_late()) return walk.states_[number].copies.push_back(copy);
      carry_out(copy);
    }
    void wait_copies() {
      for (const Copy& copy : walk.states_[number].copies) carry_out(copy);
      walk.states_[number].copies.clear();
    }
    template <class Bits>
    void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
      using Operands = std::array<uint32_t, 6>;
      const Shown* const shown = show(Operands{a[0], a[1], a[2], a[3], b0, b1});
      // Element (row, k) of a and (k, column) of b: a half of a word of some thread.
      const auto at = [&](uint32_t thread, uint32_t word, uint32_t half) {
        Operands words;
        std::memcpy(&words, &shown[thread], sizeof(words));
        return widen(Bits{static_cast<uint16_t>(words[word] >> 16 * half)});
      };
      const uint32_t lane = number % kWarp;
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (uint32_t k = 0; k < 16; ++k) {
          d[i] += at(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
                  at(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
        }
      }
    }
    template <class Bits>
    void load_matrices(uint32_t (&to)[4], const Bits* row) {
      const uint32_t g = number % kWarp / 4, t = number % 4;
      load(to, row, [&](uint32_t half) { return std::pair(g, 2 * t + half); });
    }
    template <class Bits>
    void load_matrices_transposed(uint32_t (&to)[4], const Bits* row) {
      const uint32_t g = number % kWarp / 4, t = number % 4;
      load(to, row, [&](uint32_t half) { return std::pair(2 * t + half, g); });
    }
    template <class W>
    W* shared() {
      return reinterpret_cast<W*>(walk.shared_.data());
    }

   private:
    /// What the threads of the warp show, once all have.
    template <class V>
    const Shown* show(const V& value) {
      static_assert(sizeof(V) <= sizeof(Shown));
      // Two places in turn: no thread is two exchanges ahead of another one of its warp.
      std::vector<Shown>& places = walk.exchange_[walk.states_[number].exchanges++ % 2];
      std::memcpy(&places[number], &value, sizeof(V));
      walk.meet(number, walk.warp_meetings_[number / kWarp]);
      return &places[number / kWarp * kWarp];
    }
    static void carry_out(const Copy& copy) {
      check_aligned(copy.to);
      check_aligned(copy.from);
      if (copy.from != nullptr) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
    /// place(half): row and column in each matrix of a half of this thread's word.
    template <class Bits, class Place>
    void load(uint32_t (&to)[4], const Bits* row, const Place& place) {
      check_aligned(row);
      const Shown* const rows = show(row);
      for (uint32_t i = 0; i < 4; ++i) {
        to[i] = 0;
        for (uint32_t half = 0; half < 2; ++half) {
          const auto [r, column] = place(half);
          const Bits* from;
          std::memcpy(&from, &rows[8 * i + r], sizeof(from));
          to[i] |= uint32_t{from[column].bits} << 16 * half;
        }
      }
    }
    static void check_aligned(const void* pointer) {
      if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
        throw std::logic_error("a pointer is not aligned to 16 bytes");
    }
  };

  using Fibres = std::vector<std::unique_ptr<Fibre>>;
  /// Of threads that have ended, for those to come: a stack costs the kernel more than most walks.
  struct LeftFibres {
    std::mutex mutex;
    std::vector<Fibres> sets;
  };
  struct OwnFibres {
    OwnFibres() {
      const std::scoped_lock lock(left().mutex);
      if (left().sets.empty()) return;
      fibres = std::move(left().sets.back());
      left().sets.pop_back();
    }
    ~OwnFibres() {
      const std::scoped_lock lock(left().mutex);
      left().sets.push_back(std::move(fibres));
    }
    static LeftFibres& left() {
      static LeftFibres all;
      return all;
    }
    Fibres fibres;
  };
  /// Kept for the next walk of this thread, which walks one kernel at a time.
  static Fibres& fibres() {
    thread_local OwnFibres own;
    return own.fibres;
  }

  void start(uint32_t thread) {
    states_[thread].waits_at = nullptr;
    states_[thread].done = false;
    states_[thread].exchanges = 0;
    states_[thread].copies.clear();
    states_[thread].fibre = nullptr;
  }

  /// Runs a thread, and on its fibre those after it that have not begun: to change fibres takes
  /// longer than most of what threads do between two meetings.
  static void run_threads(void* owner, uint32_t thread) {
    auto* const walk = static_cast<Walk*>(owner);
    Fibre* const fibre = walk->states_[thread].fibre;
    while (true) {
      walk->body_(*walk, thread, walk->kernel_);
      walk->states_[thread].done = true;
      ++walk->ended_;
      const uint32_t next = walk->order_ == Order::kBackwards ? thread - 1 : thread + 1;
      if (walk->order_ == Order::kShuffled || next / kWarp != thread / kWarp) return;
      if (walk->states_[next].fibre != nullptr) return;
      thread = next;
      walk->states_[thread].fibre = fibre;
    }
  }

  /// Every thread that can runs until it meets others; returns how many ended. Forwards and
  /// backwards each warp gets as far as it can before the next one begins; shuffled no thread is
  /// more than one meeting ahead.
  uint32_t round() {
    uint32_t ran = 0;
    ended_ = 0;
    if (order_ == Order::kShuffled) {
      std::vector<uint32_t> turns(threads_);
      std::iota(turns.begin(), turns.end(), 0u);
      for (size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[mix(++drawn_) % i]);
      for (const uint32_t t : turns) ran += step(t);
    } else {
      for (uint32_t w = 0; w < threads_ / kWarp; ++w)
        ran += run_warp(in_order(w, threads_ / kWarp));
    }
    if (ran == 0) throw std::logic_error("threads wait for others of the block, which have ended");
    return ended_;
  }

  bool copies_late() {
    if (order_ == Order::kShuffled) return mix(++drawn_) % 2 == 0;
    return order_ == Order::kBackwards;
  }

  uint32_t in_order(uint32_t i, uint32_t count) const {
    return order_ == Order::kBackwards ? count - 1 - i : i;
  }

  uint32_t run_warp(uint32_t warp) {
    uint32_t all = 0, ran = 1;
    while (ran > 0) {
      ran = 0;
      for (uint32_t i = 0; i < kWarp; ++i) ran += step(warp * kWarp + in_order(i, kWarp));
      all += ran;
    }
    return all;
  }

  /// Runs the thread to its next meeting, if it does not wait at one; returns whether it ran.
  uint32_t step(uint32_t thread) {
    ThreadState& state = states_[thread];
    if (state.done) return 0;
    if (state.waits_at != nullptr && state.waits_at->generation == state.generation) return 0;
    state.waits_at = nullptr;
    if (state.fibre == nullptr) {
      state.fibre = fibres()[thread].get();
      state.fibre->set(&run_threads, this, thread);
    }
    state.fibre->resume();
    return 1;
  }

  void meet(uint32_t thread, Meeting& meeting) {
    // The last one waits for its turn, too: the order decides who is first after a meeting.
    states_[thread].generation = meeting.generation;
    states_[thread].waits_at = &meeting;
    if (++meeting.arrived == meeting.expected) {
      meeting.arrived = 0;
      ++meeting.generation;
    }
    states_[thread].fibre->pause();
  }

  struct alignas(16) Line {
    std::byte bytes[16];
  };
  const uint32_t threads_;
  const Order order_;
  std::vector<Line> shared_;
  std::vector<ThreadState> states_;
  std::vector<Shown> exchange_[2];
  Meeting block_meeting_{};
  std::vector<Meeting> warp_meetings_;
  Grid index_;
  void (*body_)(Walk&, uint32_t, const void*) = nullptr;
  const void* kernel_ = nullptr;
  uint32_t ended_ = 0;  // threads of this round
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
