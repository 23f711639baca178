// The global order of samples: a permutation per epoch, and the same whoever shares it.
#include "trainer/sampler.hpp"

#include <cmath>
#include <set>
#include <vector>

#include "tests/harness/catch.hpp"

using namespace rondo::trainer;

TEST_CASE("permutation: every size is a bijection") {
  for (uint64_t size = 1; size <= 300; ++size) {
    const Permutation permutation(size, 42);
    std::vector<char> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = permutation(i);
      REQUIRE(to < size);
      REQUIRE(!seen[to]);
      seen[to] = 1;
    }
  }
}

TEST_CASE("permutation: the largest sizes stay inside") {
  for (const uint64_t size : {(uint64_t{1} << 32) + 1, uint64_t{1} << 62}) {
    const Permutation permutation(size, 7);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t to = permutation(size - 1 - i);
      REQUIRE(to < size);
      seen.insert(to);
    }
    CHECK(seen.size() == 1000);
  }
}

TEST_CASE("permutation: another key is another order, and neighbours are torn apart") {
  constexpr uint64_t kSize = 10000;
  const Permutation a(kSize, 1), b(kSize, 2);
  int equal = 0, adjacent = 0;
  double mean_distance = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) {
    equal += a(i) == b(i);
    const double distance = std::abs(static_cast<double>(a(i)) - static_cast<double>(a(i + 1)));
    adjacent += distance == 1;
    mean_distance += distance / kSize;
  }
  CHECK(equal < 10);
  CHECK(adjacent < 20);
  CHECK(mean_distance == Approx(kSize / 3.0).epsilon(0.05));  // of two independent positions
}

TEST_CASE("order: an epoch uses each sample at most once, the next one in another order") {
  const SampleOrder order{.samples = 103, .global_batch = 10, .seed = 5};
  CHECK(order.steps_per_epoch() == 10);
  CHECK(order.epoch_of(1) == 0);
  CHECK(order.epoch_of(10) == 0);
  CHECK(order.epoch_of(11) == 1);
  const auto samples_of = [&](uint64_t step) {
    std::vector<uint64_t> samples;
    const Permutation permutation = order.permutation_of(step);
    for (uint64_t j = 0; j < 10; ++j) samples.push_back(permutation(order.first_of(step) + j));
    return samples;
  };
  std::set<uint64_t> seen;
  for (uint64_t step = 1; step <= 10; ++step) {
    for (uint64_t sample : samples_of(step)) seen.insert(sample);
  }
  CHECK(seen.size() == 100);
  CHECK(samples_of(1) != samples_of(11));
  CHECK(order.first_of(11) == 0);
}
