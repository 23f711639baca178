// Checks that the emulation of kernels on the host finds what the kernels' tests look for with it.
#include "tests/trainer/cuda/walk.hpp"

#include <cstring>
#include <vector>

#include "tests/harness/catch.hpp"

namespace rondo::trainer::cuda_walk_test {

using cuda::testing::Order;
using cuda::testing::walk;

namespace {

/// Lacks a barrier between a write and another thread's read.
struct Racing {
  float* out;
  static constexpr uint32_t kThreads = 64;
  cuda::Grid grid() const { return {}; }
  size_t shared_bytes() const { return kThreads * sizeof(float); }
  template <class Block>
  void run(Block& block) const {
    float* const shared = block.template shared<float>();
    shared[block.thread()] = static_cast<float>(block.thread());
    out[block.thread()] = shared[block.thread() ^ 1];
  }
};

/// Half of its threads return before the barrier of the others.
struct Leaving {
  static constexpr uint32_t kThreads = 64;
  cuda::Grid grid() const { return {}; }
  size_t shared_bytes() const { return 0; }
  template <class Block>
  void run(Block& block) const {
    if (block.thread() % 2 == 0) block.sync();
  }
};

}  // namespace

TEST_CASE("the walk finds a kernel that lacks a barrier, and one whose threads return early") {
  std::vector<float> forwards(64), backwards(64);
  walk(Racing{forwards.data()}, Order::kForwards);
  walk(Racing{backwards.data()}, Order::kBackwards);
  CHECK(std::memcmp(forwards.data(), backwards.data(), 64 * sizeof(float)) != 0);
  CHECK_THROWS_AS(walk(Leaving{}), std::logic_error);
}

}  // namespace rondo::trainer::cuda_walk_test
