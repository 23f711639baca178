// The global order of samples: a permutation per epoch, and the same whoever shares it.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "rondo/ddp.hpp"
#include "tests/harness/catch.hpp"
#include "trainer/ddp/permutation.hpp"

using namespace rondo;
using rondo::ddp::Permutation;

namespace {

using Tail = DistributedSampler::Tail;
using Positions = std::vector<uint64_t>;

/// All that is left to this rank.
Positions all_of(const DistributedSampler& sampler) {
  Positions positions;
  for (uint64_t i = 0; i < sampler.size(); ++i) positions.push_back(sampler.index(i));
  return positions;
}

Positions unshuffled(uint64_t samples, uint64_t ranks, uint64_t rank, Tail tail,
                     uint64_t consumed = 0) {
  DistributedSampler sampler(
      {.samples = samples, .ranks = ranks, .rank = rank, .shuffle = false, .tail = tail});
  sampler.set_epoch(0, consumed);
  return all_of(sampler);
}

DistributedSampler shuffled(uint64_t samples, uint64_t ranks, uint64_t rank, Tail tail) {
  return DistributedSampler(
      {.samples = samples, .ranks = ranks, .rank = rank, .seed = 11, .tail = tail});
}

/// Samples first .. first + count - 1 of every rank, together, sorted.
Positions together(uint64_t samples, uint64_t ranks, Tail tail, uint64_t consumed, uint64_t first,
                   uint64_t count) {
  Positions positions;
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    DistributedSampler sampler = shuffled(samples, ranks, rank, tail);
    sampler.set_epoch(3, consumed);
    const uint64_t end = std::min(first + count, sampler.size());
    for (uint64_t i = first; i < end; ++i) positions.push_back(sampler.index(i));
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

Positions everything(uint64_t samples) {
  Positions positions;
  for (uint64_t i = 0; i < samples; ++i) positions.push_back(i);
  return positions;
}

}  // namespace

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

// By hand, after torch/utils/data/distributed.py: with padding the list 0..9 becomes 0..9, 0, 1.
TEST_CASE("sampler: 10 samples on 4 ranks, as PyTorch cuts them") {
  const Positions padded[] = {{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}};
  const Positions kept[] = {{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}};
  for (uint64_t rank = 0; rank < 4; ++rank) {
    CHECK(unshuffled(10, 4, rank, Tail::kPad) == padded[rank]);
    CHECK(unshuffled(10, 4, rank, Tail::kKeep) == kept[rank]);
    CHECK(unshuffled(10, 4, rank, Tail::kDrop) == Positions{rank, rank + 4});  // ceil((10 - 4) / 4)
  }
}

TEST_CASE("sampler: fewer samples than ranks") {
  // The list 0, 1, 2 is padded to 8: 0 1 2 0 1 2 0 1.
  const uint64_t padded[] = {0, 1, 2, 0, 1, 2, 0, 1};
  for (uint64_t rank = 0; rank < 8; ++rank) {
    CHECK(unshuffled(3, 8, rank, Tail::kPad) == Positions{padded[rank]});
    CHECK(unshuffled(3, 8, rank, Tail::kDrop).empty());
    CHECK(unshuffled(3, 8, rank, Tail::kKeep).size() == (rank < 3 ? 1 : 0));
  }
  CHECK(unshuffled(0, 2, 1, Tail::kPad).empty());
}

TEST_CASE("sampler: least and most of any rank") {
  for (uint64_t samples = 0; samples <= 30; ++samples) {
    for (uint64_t ranks = 1; ranks <= 7; ++ranks) {
      for (const Tail tail : {Tail::kPad, Tail::kDrop, Tail::kKeep}) {
        uint64_t least = samples, most = 0, total = 0;
        for (uint64_t rank = 0; rank < ranks; ++rank) {
          least = std::min(least, shuffled(samples, ranks, rank, tail).size());
          most = std::max(most, shuffled(samples, ranks, rank, tail).size());
          total += shuffled(samples, ranks, rank, tail).size();
        }
        CHECK(shuffled(samples, ranks, ranks - 1, tail).most() == most);
        CHECK(shuffled(samples, ranks, 0, tail).least() == least);
        if (tail == Tail::kKeep) CHECK(total == samples);
        if (tail == Tail::kDrop) CHECK(total == samples / ranks * ranks);
        if (tail == Tail::kPad) CHECK(total == (samples + ranks - 1) / ranks * ranks);
      }
    }
  }
}

TEST_CASE("sampler: step s of N ranks with batch B is step s of one rank with batch N*B") {
  constexpr uint64_t kSamples = 421, kBatch = 3;
  for (const uint64_t ranks : {1u, 2u, 3u, 4u, 5u, 7u}) {
    for (const Tail tail : {Tail::kPad, Tail::kDrop, Tail::kKeep}) {
      const uint64_t global = ranks * kBatch;
      for (uint64_t step = 0; step < kSamples / global; ++step) {
        const Positions shared = together(kSamples, ranks, tail, 0, step * kBatch, kBatch);
        REQUIRE(shared.size() == global);
        REQUIRE(shared == together(kSamples, 1, tail, 0, step * global, global));
      }
    }
  }
}

TEST_CASE("sampler: an epoch has every sample, the next one in another order") {
  for (const uint64_t ranks : {1u, 2u, 3u, 4u, 5u, 7u}) {
    CHECK(together(103, ranks, Tail::kKeep, 0, 0, 103) == everything(103));
    Positions padded = together(103, ranks, Tail::kPad, 0, 0, 103);
    padded.erase(std::unique(padded.begin(), padded.end()), padded.end());
    CHECK(padded == everything(103));
    const Positions dropped = together(103, ranks, Tail::kDrop, 0, 0, 103);
    CHECK(std::adjacent_find(dropped.begin(), dropped.end()) == dropped.end());
  }
  DistributedSampler sampler = shuffled(103, 2, 1, Tail::kPad);
  const Positions first = all_of(sampler);
  CHECK(first == all_of(shuffled(103, 2, 1, Tail::kPad)));
  sampler.set_epoch(1);
  CHECK(all_of(sampler) != first);
  sampler.set_epoch(0);
  CHECK(all_of(sampler) == first);
  CHECK(first != all_of(DistributedSampler({.samples = 103, .ranks = 2, .rank = 1, .seed = 12})));
}

TEST_CASE("sampler: goes on where it was, on as many ranks") {
  for (const Tail tail : {Tail::kPad, Tail::kDrop, Tail::kKeep}) {
    for (uint64_t rank = 0; rank < 4; ++rank) {
      DistributedSampler sampler = shuffled(50, 4, rank, tail);
      const Positions whole = all_of(sampler);
      for (uint64_t i = 0; i <= sampler.most(); ++i) {
        DistributedSampler resumed = shuffled(50, 4, rank, tail);
        resumed.set_epoch(0, sampler.consumed_after(i));
        const Positions rest(whole.begin() + static_cast<long>(std::min(i, sampler.size())),
                             whole.end());
        CHECK(all_of(resumed) == rest);
      }
    }
  }
}

TEST_CASE("sampler: goes on where it was, on another number of ranks") {
  constexpr uint64_t kSamples = 101, kOldRanks = 3, kDone = 11;
  const uint64_t consumed = shuffled(kSamples, kOldRanks, 0, Tail::kKeep).consumed_after(kDone);
  CHECK(consumed == kOldRanks * kDone);
  const Positions done = together(kSamples, kOldRanks, Tail::kKeep, 0, 0, kDone);
  for (const uint64_t ranks : {1u, 2u, 4u, 5u, 7u}) {
    Positions both = together(kSamples, ranks, Tail::kKeep, consumed, 0, kSamples);
    CHECK(both.size() == kSamples - consumed);
    both.insert(both.end(), done.begin(), done.end());
    std::sort(both.begin(), both.end());
    CHECK(both == everything(kSamples));
  }
  // What is left, padded anew: entries 98, 99, 0, 1 of 100.
  CHECK(unshuffled(100, 4, 0, Tail::kPad, 98) == Positions{98});
  CHECK(unshuffled(100, 4, 2, Tail::kPad, 98) == Positions{0});
  CHECK(unshuffled(100, 4, 2, Tail::kPad, 100).empty());
  CHECK(unshuffled(100, 4, 2, Tail::kPad, 1000).empty());
}
