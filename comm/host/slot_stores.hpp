// Whether a rank stores into a peer's slots through its caches or around them (non-temporal
// stores). A slot's lines lie in the reader's caches, and a core has to fetch each before it stores
// through its own: between cores that share a cache that is quick; between others a line may take
// ten times as long as one that is stored around the caches (25 against 2 ns on two Zen 4 cores;
// prefetching does not help). Which cores a virtual machine's are changes while it runs. So the
// writer tries both now and then, and takes what is cheaper, less what the reader loses; results
// have the same bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "comm/base/clock.hpp"

namespace rondo::engine {

/// Decides for one kind of move to one reader. Used by one thread at a time.
class SlotStores {
 public:
  /// Smaller moves go through the caches: little is gained, and the store buffer hides their cost.
  static constexpr size_t kSmallest = 1024;
  static constexpr uint8_t kFresh = 8;   // moves before the first cycle: pages are new to them
  static constexpr uint16_t kTries = 3;  // of either way, at the beginning of a cycle
  /// Moves in a cycle; cycles grow. Odd, so that tries fall on other moves of an operation each time.
  static constexpr uint16_t kFirst = 31, kMost = 1021;
  /// What a reader loses with each line that it takes from memory instead of a near core's caches, by
  /// the size of the move: from 1, 2, 4 and 8 KiB. On two Zen 4 cores 7, 6, 5 and 1.5; large moves
  /// need a clear gain.
  static constexpr float kReaderNs[4] = {7, 6, 5, 4};
  static constexpr size_t size_class(size_t bytes) {
    return (bytes >= 2048 ? 1u : 0u) + (bytes >= 4096 ? 1u : 0u) + (bytes >= 8192 ? 1u : 0u);
  }
  /// Kinds of moves whose times per line do not compare.
  static constexpr size_t kKinds = 16;
  static constexpr size_t kind(uint32_t sources, uint32_t destinations, size_t bytes) {
    return (sources > 1 ? 8u : 0u) + (destinations > 1 ? 4u : 0u) + size_class(bytes);
  }

  struct StoreTurn {
    bool around = false;  // store around the caches
    bool timed = false;   // and tell took() how long that took
  };

  /// How to make the next move, of `bytes`.
  StoreTurn next(size_t bytes) {
    if (fresh_ > 0) {
      --fresh_;
      return {};
    }
    if (turn_ == length_) {
      length_ = std::min<uint16_t>(2 * length_ + 1, kMost);
      turn_ = 0;
    }
    if (turn_ == 0) line_ns_[0] = line_ns_[1] = std::numeric_limits<float>::infinity();
    const uint16_t turn = turn_++;
    if (turn < 2 * kTries) return {.around = turn >= kTries, .timed = true};
    if (turn == 2 * kTries) {
      around_ = line_ns_[1] + kReaderNs[size_class(bytes)] < line_ns_[0];
    }
    return {.around = around_, .timed = false};
  }

  /// The quickest of a few tries counts: others were interrupted.
  void took(StoreTurn turn, size_t bytes, int64_t ns) {
    float& quickest = line_ns_[turn.around ? 1 : 0];
    quickest = std::min(quickest, static_cast<float>(ns) * 64 / static_cast<float>(bytes));
  }

  /// Makes a move of `bytes`, and times it if it is its turn.
  template <class F>
  void make(StoreTurn turn, size_t bytes, F&& move) {
    if (!turn.timed) return move();
    const int64_t begin = base::now_ns();
    move();
    // Waits until the stores have left the store buffer (a fence, which TSan would not know).
    std::atomic<int> stores{0};
    stores.exchange(1);
    took(turn, bytes, base::now_ns() - begin);
  }

 private:
  float line_ns_[2] = {};  // through the caches, and around them
  uint16_t turn_ = 0, length_ = kFirst;
  uint8_t fresh_ = kFresh;
  bool around_ = false;
};

}  // namespace rondo::engine
