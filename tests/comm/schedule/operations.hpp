// An operation of all ranks, built and lowered, as the verifier takes it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/schedule/verifier.hpp"

namespace rondo::schedule::test {

/// The algorithms that do the collective.
inline std::vector<Algorithm> algorithms_of(Collective collective) {
  std::vector<Algorithm> some;
  for (const algorithms::AlgorithmTraits* traits : algorithms::all()) {
    if (algorithms::find(collective, traits->algorithm)) some.push_back(traits->algorithm);
  }
  return some;
}

struct OperationShape {
  Collective collective;
  Algorithm algorithm;
  int ranks;
  int root = 0;
  bool in_place = false;
  uint64_t count = 0;
  std::vector<BlockLayout> layouts{};  // [rank], of a _v collective
};

/// build() and lower() for every rank. Refuses in place where the algorithm is not safe so.
inline Result<LoweredOperation> make_operation(const OperationShape& shape, const Limits& limits) {
  if (shape.in_place && !algorithms::is_in_place_safe(shape.collective, shape.algorithm)) {
    return Status(Code::kUnavailable, std::string(name(shape.algorithm)) + " " +
                                          std::string(name(shape.collective)) +
                                          " cannot be used in place; choose another algorithm");
  }
  LoweredOperation op{.collective = shape.collective,
                      .root = shape.root,
                      .in_place = shape.in_place,
                      .count = shape.count,
                      .programs = {},
                      .layouts = shape.layouts};
  for (int r = 0; r < shape.ranks; ++r) {
    Result<Schedule> s =
        algorithms::build(shape.collective, shape.algorithm, shape.ranks, r, shape.root);
    if (!s.ok()) return s.status();
    const bool varies = is_varying(shape.collective);
    Result<Program> program = lower(*s, shape.count, limits,
                                    varies ? shape.layouts[static_cast<size_t>(r)] : BlockLayout{});
    if (!program.ok()) return program.status();
    op.programs.push_back(std::move(*program));
  }
  return op;
}

}  // namespace rondo::schedule::test
