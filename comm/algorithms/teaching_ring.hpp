// Why an all-reduce costs 2(N-1)/N, as a program one can read in a minute: the ring, unpipelined,
// over plain vectors. Teaching text: nothing in rondo calls it but its test. The working version is
// ring.cpp.
#pragma once

#include <cstddef>
#include <vector>

namespace rondo::algorithms {

struct TeachingResult {
  std::vector<std::vector<double>> outputs;  // [rank]
  std::vector<size_t> elements_sent;         // [rank]
};

/// Sums `inputs` (one vector per rank, at least one rank, all of the same length).
TeachingResult teaching_ring_all_reduce(const std::vector<std::vector<double>>& inputs);

}  // namespace rondo::algorithms
