// An operation of all ranks, built and lowered, as the verifier takes it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/schedule/verifier.hpp"

namespace rondo::schedule::test {

inline bool needs_hosts(Algorithm algorithm) {
  return algorithms::traits_of(algorithm).needs.hosts;
}

inline std::vector<Collective> collectives() {
  std::vector<Collective> all;
  for (int c = 0; c < kCollectives; ++c) all.push_back(static_cast<Collective>(c));
  return all;
}

/// The algorithms that do the collective, and whose needs are met.
template <class Met>
std::vector<Algorithm> algorithms_with(Collective collective, Met are_met) {
  std::vector<Algorithm> some;
  for (const algorithms::AlgorithmTraits* traits : algorithms::all()) {
    const bool does = algorithms::find(collective, traits->algorithm) != nullptr;
    if (does && are_met(traits->needs)) some.push_back(traits->algorithm);
  }
  return some;
}
/// On one host.
inline std::vector<Algorithm> algorithms_of(Collective collective) {
  return algorithms_with(collective, [](const algorithms::Needs& needs) { return !needs.hosts; });
}
/// On several hosts.
inline std::vector<Algorithm> algorithms_between_hosts(Collective collective) {
  return algorithms_with(collective,
                         [](const algorithms::Needs& needs) { return !needs.one_host(); });
}

inline SharedHosts hosts_of(const std::vector<int>& labels) {
  return std::make_shared<const base::HostMap>(labels);
}

/// Hosts of these numbers of consecutive ranks.
inline SharedHosts consecutive(const std::vector<int>& ranks_on) {
  std::vector<int> labels;
  for (size_t h = 0; h < ranks_on.size(); ++h) {
    labels.insert(labels.end(), static_cast<size_t>(ranks_on[h]), static_cast<int>(h));
  }
  return hosts_of(labels);
}

/// Hosts for an algorithm that needs several, and none for others: about three, of one size where
/// `ranks` can be divided so.
inline SharedHosts usual_hosts(Algorithm algorithm, int ranks) {
  if (!needs_hosts(algorithm) || ranks == 1) return nullptr;
  const int hosts = ranks % 3 == 0 ? 3 : ranks % 2 == 0 ? 2 : std::min(ranks, 3);
  std::vector<int> labels;
  for (int r = 0; r < ranks; ++r) labels.push_back(r * hosts / ranks);
  return hosts_of(labels);
}

/// build(), on these hosts; null: one.
inline Result<Schedule> build_on(const SharedHosts& hosts, Collective collective,
                                 Algorithm algorithm, int ranks, int rank, int root) {
  return hosts ? algorithms::build(collective, algorithm, hosts, rank, root)
               : algorithms::build(collective, algorithm, ranks, rank, root);
}

struct OperationShape {
  Collective collective;
  Algorithm algorithm;
  int ranks;
  int root = 0;
  bool in_place = false;
  uint64_t count = 0;
  std::vector<BlockLayout> layouts{};  // [rank], of a _v collective
  SharedHosts hosts = usual_hosts(algorithm, ranks);
};

/// build() and lower() for every rank.
inline Result<LoweredOperation> make_operation(const OperationShape& shape, const Limits& limits) {
  LoweredOperation op{.collective = shape.collective,
                      .root = shape.root,
                      .in_place = shape.in_place,
                      .count = shape.count,
                      .programs = {},
                      .layouts = shape.layouts,
                      .hosts = shape.hosts};
  for (int r = 0; r < shape.ranks; ++r) {
    Result<Schedule> s =
        build_on(shape.hosts, shape.collective, shape.algorithm, shape.ranks, r, shape.root);
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
