// The list of algorithms, and how to look one up.
#include <algorithm>
#include <string>

#include "comm/algorithms/algorithm.hpp"
#include "comm/algorithms/parts.hpp"
#include "comm/base/limits.hpp"

namespace rondo::algorithms {

// Each is defined in the file of its name.
extern const AlgorithmTraits kRing, kOneShot, kTwoShot, kOneShotDirect, kTwoShotDirect, kFlat,
    kTree, kStar, kHierarchical, kHierarchicalTree, kCopyEngine;

namespace {

constexpr const AlgorithmTraits* kAll[] = {
    &kRing, &kOneShot, &kTwoShot,      &kOneShotDirect,    &kTwoShotDirect, &kFlat,
    &kTree, &kStar,    &kHierarchical, &kHierarchicalTree, &kCopyEngine};

constexpr AlgorithmTraits kNothing{.algorithm = Algorithm::kAuto};

Status refuse(const std::string& why) { return {Code::kInvalidArgument, why}; }

/// "`what` 5 is not below 4, the number of ranks", or ok.
Status check_below(const char* what, int value, int ranks) {
  if (value >= 0 && value < ranks) return {};
  return refuse(std::string(what) + " " + std::to_string(value) + " is not below " +
                std::to_string(ranks) + ", the number of ranks");
}

}  // namespace

std::span<const AlgorithmTraits* const> all() { return kAll; }

const AlgorithmTraits& traits_of(Algorithm algorithm) {
  for (const AlgorithmTraits* traits : kAll) {
    if (traits->algorithm == algorithm) return *traits;
  }
  return kNothing;
}

const CollectiveTraits* find(Collective collective, Algorithm algorithm) {
  for (const CollectiveTraits& traits : traits_of(algorithm).collectives) {
    if (traits.collective != base_of(collective)) continue;
    return is_varying(collective) && !traits.has_v_form ? nullptr : &traits;
  }
  return nullptr;
}

bool is_in_place_safe(Collective collective, Algorithm algorithm) {
  const CollectiveTraits* traits = find(collective, algorithm);
  return traits != nullptr && traits->in_place && collective != Collective::kAllToAllV;
}

bool folds_in_rank_order(Collective collective, Algorithm algorithm, DataType type) {
  const CollectiveTraits* traits = find(collective, algorithm);
  const bool rounds = is_floating(type) && size_of(type) < 4;
  return traits_of(algorithm).folds_in_rank_order ||
         (traits != nullptr && traits->folds_along && !rounds);
}

bool may_go_by_ll(Collective collective, Algorithm algorithm) {
  const CollectiveTraits* traits = find(collective, algorithm);
  return traits != nullptr && traits->ll && !is_varying(collective);
}

Volume volume_of(Collective collective, Algorithm algorithm, const base::HostMap& hosts, int rank,
                 int root) {
  const CollectiveTraits* traits = find(collective, algorithm);
  if (traits->volume == nullptr) return {};
  const auto n = static_cast<uint64_t>(hosts.ranks());
  return traits->volume({.n = n,
                         .node = static_cast<uint64_t>(rank + hosts.ranks() - root) % n,
                         .hosts = &hosts,
                         .rank = rank,
                         .root = root});
}

const char* refusal_on(Algorithm algorithm, const base::HostMap& hosts) {
  const Needs& needs = traits_of(algorithm).needs;
  if (needs.hosts && hosts.hosts() <= 1) return "all ranks are on one host";
  if (needs.one_host() && hosts.hosts() > 1) return "ranks on several hosts share no memory";
  return nullptr;
}

namespace {

/// build(); `hosts`: null if all ranks are on one.
Result<Schedule> build_on(Collective collective, Algorithm algorithm, int ranks,
                          const schedule::SharedHosts& hosts, int rank, int root) {
  const CollectiveTraits* traits = find(collective, algorithm);
  if (traits == nullptr) {
    return Status(Code::kUnavailable, std::string("no ") + std::string(name(algorithm)) +
                                          " algorithm for " + std::string(name(collective)) +
                                          "; choose another or auto");
  }
  if (ranks < 1 || ranks > base::kMaxScheduleRanks) {
    return refuse("a schedule is for 1 to " + std::to_string(base::kMaxScheduleRanks) +
                  " ranks, not " + std::to_string(ranks));
  }
  RONDO_TRY(check_below("rank", rank, ranks));
  const char* const why = refusal_on(algorithm, hosts ? *hosts : base::HostMap());
  if (ranks > 1 && why != nullptr) {
    return Status(Code::kUnavailable, std::string("no ") + std::string(name(algorithm)) + " " +
                                          std::string(name(collective)) + ": " + why);
  }
  // Chunks are numbered by int, and an all_to_all has one for every pair.
  constexpr int kMostInPairs = 46340;
  if (base_of(collective) == Collective::kAllToAll && ranks > kMostInPairs) {
    return refuse("an all_to_all is for 1 to 46340 ranks, not " + std::to_string(ranks));
  }
  const bool rooted = internal::is_rooted(collective);
  if (rooted) RONDO_TRY(check_below("root", root, ranks));
  Schedule s{.collective = collective,
             .algorithm = algorithm,
             .ranks = ranks,
             .rank = rank,
             .root = rooted ? root : 0,
             .chunks = 1,
             .least_depth = traits->least_depth,
             .steps = {},
             .hosts = hosts};
  if (ranks > 1) {
    traits->build(s);
  } else if (collective != Collective::kBarrier) {
    const Operand source = collective == Collective::kExclusiveScan ? identity(0) : in(0);
    const bool finishes = internal::form_of(collective).reduces && !is_scan(collective);
    s.steps.push_back(move(0, {source}, {out(0)}, finishes));
  }
  return s;
}

}  // namespace

Result<Schedule> build(Collective collective, Algorithm algorithm,
                       const schedule::SharedHosts& hosts, int rank, int root) {
  const bool one = hosts->hosts() <= 1;
  return build_on(collective, algorithm, hosts->ranks(), one ? nullptr : hosts, rank, root);
}

Result<Schedule> build(Collective collective, Algorithm algorithm, int ranks, int rank, int root) {
  return build_on(collective, algorithm, ranks, nullptr, rank, root);
}

}  // namespace rondo::algorithms
