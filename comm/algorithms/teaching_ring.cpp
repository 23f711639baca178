// N ranks stand in a ring. Each holds a vector; each wants the sum of all. Every rank may hand
// something to its right-hand neighbour, all at the same time: one hop.
//
// The simple way: hand whole vectors round, add up what comes by. That takes N-1 hops of the whole
// vector, S elements each: a rank sends (N-1) * S, and all ranks do the same additions N times
// over.
//
// The ring does better by dividing the work. Cut the vector into N chunks and make rank r
// responsible for chunk r.
//
//   Reduce-scatter. A chunk starts as one rank's part, at the right of the rank that is responsible
//   for it, and travels round the ring; each rank that it passes adds its own part. After N-1 hops it
//   arrives where it belongs, complete. All N chunks travel at the same time, one between each pair
//   of neighbours, so that all ranks are always busy and nothing is added twice. Each rank has sent
//   N-1 chunks of S/N elements.
//
//   All-gather. Now every chunk is complete somewhere, and travels round once more, copied by
//   each rank that it passes. Another N-1 hops, another N-1 chunks of S/N elements from each rank.
//
// Together 2 * (N-1) * S/N: that is the 2(N-1)/N. It hardly grows with N (1 for two ranks, 1.5 for
// four, never above 2), and no algorithm needs less: what a rank holds must receive N-1
// other parts to be complete, and the sums must get back to N-1 ranks. What the ring pays for it is time:
// 2(N-1) hops one after the other, which is why small messages use other algorithms.
#include "comm/algorithms/teaching_ring.hpp"

#include <algorithm>

namespace rondo::algorithms {

TeachingResult teaching_ring_all_reduce(const std::vector<std::vector<double>>& inputs) {
  using Chunk = std::vector<double>;
  const size_t ranks = inputs.size(), count = inputs[0].size();
  const size_t block = (count + ranks - 1) / ranks;  // the last chunks may be shorter, or empty
  const auto begin_of = [&](size_t chunk) { return std::min(chunk * block, count); };
  const auto left_by = [&](size_t rank, size_t steps) {
    return (rank + ranks - steps % ranks) % ranks;
  };

  TeachingResult result{.outputs = inputs, .elements_sent = std::vector<size_t>(ranks, 0)};

  // One hop: rank r sends its current version of chunk `chunk_of(r)`; everybody has sent before
  // anybody receives.
  const auto hop = [&](auto chunk_of, auto receive) {
    std::vector<Chunk> in_flight(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      const std::vector<double>& mine = result.outputs[r];
      const size_t c = chunk_of(r);
      for (size_t i = begin_of(c); i < begin_of(c + 1); ++i) in_flight[r].push_back(mine[i]);
      result.elements_sent[r] += in_flight[r].size();
    }
    for (size_t r = 0; r < ranks; ++r) {
      const size_t prev = left_by(r, 1), c = chunk_of(prev);
      for (size_t i = 0; i < in_flight[prev].size(); ++i) {
        receive(result.outputs[r][begin_of(c) + i], in_flight[prev][i]);
      }
    }
  };

  // Reduce-scatter: rank r sends chunk r-1 first, then what it has just added to: r-2, r-3, ... The
  // last to arrive is r.
  for (size_t step = 1; step < ranks; ++step) {
    hop([&](size_t r) { return left_by(r, step); },
        [](double& mine, double received) { mine = received + mine; });
  }
  // All-gather: rank r sends its complete chunk r first, then what it has just received: r-1, r-2,
  // ...
  for (size_t step = 0; step + 1 < ranks; ++step) {
    hop([&](size_t r) { return left_by(r, step); },
        [](double& mine, double received) { mine = received; });
  }
  return result;
}

}  // namespace rondo::algorithms
