// The formulae of the builders' first comments, as a table.
#include "comm/plan/volume.hpp"

namespace rondo::plan {
namespace {

/// What one rank moves: `times` times S/N, in words.
struct Amount {
  uint64_t units;
  const char* text;
};

struct Who {
  uint64_t n;     // ranks
  uint64_t node;  // counted from the root: 0 is the root, N-1 comes before it in the ring
  uint64_t sons;  // in the binary heap
  bool root() const { return node == 0; }
  Amount nothing() const { return {0, "0"}; }
  Amount everything() const { return {n, "S"}; }
  Amount block() const { return {1, "S/N"}; }
  Amount others_blocks() const { return {n - 1, "(N-1)/N * S"}; }
  Amount there_and_back() const { return {2 * (n - 1), "2(N-1)/N * S"}; }
  Amount to_everybody() const { return {(n - 1) * n, "(N-1) * S"}; }
  Amount to_sons() const { return {sons * n, "S for each child"}; }
  Amount to_family() const {
    return {(sons + (root() ? 0 : 1)) * n, "S for parent and each child"};
  }
};

struct Amounts {
  Amount sent, fetched;
};

Amounts all_reduce(Algorithm algorithm, const Who& who) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return {who.everything(), who.to_everybody()};
    case Algorithm::kOneShotDirect:
      return {who.nothing(), who.to_everybody()};
    case Algorithm::kTwoShotDirect:
      return {who.others_blocks(), who.others_blocks()};
    case Algorithm::kTree:
      return {who.to_family(), who.nothing()};
    case Algorithm::kStar:
      return {who.root() ? who.to_everybody() : who.everything(), who.nothing()};
    default:  // ring, two-shot
      return {who.there_and_back(), who.nothing()};
  }
}

Amounts all_gather(Algorithm algorithm, const Who& who) {
  if (algorithm == Algorithm::kOneShot) return {who.block(), who.others_blocks()};
  return {who.others_blocks(), who.nothing()};
}

Amounts broadcast(Algorithm algorithm, const Who& who) {
  const Amount from_root = who.root() ? who.everything() : who.nothing();
  const Amount by_others = who.root() ? who.nothing() : who.everything();
  switch (algorithm) {
    case Algorithm::kOneShot:
      return {from_root, by_others};
    case Algorithm::kOneShotDirect:
      return {who.nothing(), by_others};
    case Algorithm::kTree:
      return {who.to_sons(), who.nothing()};
    case Algorithm::kStar:
      return {who.root() ? who.to_everybody() : who.nothing(), who.nothing()};
    default:  // ring: all but the last of the chain
      return {who.node + 1 < who.n ? who.everything() : who.nothing(), who.nothing()};
  }
}

Amounts reduce(Algorithm algorithm, const Who& who) {
  if (algorithm == Algorithm::kTwoShotDirect) {
    return {who.root() ? who.nothing() : who.block(), who.others_blocks()};
  }
  return {who.root() ? who.nothing() : who.everything(), who.nothing()};
}

Amounts amounts_of(Collective collective, Algorithm algorithm, const Who& who) {
  const bool direct =
      algorithm == Algorithm::kOneShotDirect || algorithm == Algorithm::kTwoShotDirect;
  switch (base_of(collective)) {
    case Collective::kAllReduce:
      return all_reduce(algorithm, who);
    case Collective::kReduceScatter:
      if (direct) return {who.nothing(), who.others_blocks()};
      return {who.others_blocks(), who.nothing()};
    case Collective::kAllGather:
      return all_gather(algorithm, who);
    case Collective::kBroadcast:
      return broadcast(algorithm, who);
    case Collective::kReduce:
      return reduce(algorithm, who);
    case Collective::kGather:
      return {who.root() ? who.nothing() : who.block(), who.nothing()};
    case Collective::kScatter:
      if (direct) return {who.nothing(), who.root() ? who.nothing() : who.block()};
      return {who.root() ? who.others_blocks() : who.nothing(), who.nothing()};
    case Collective::kAllToAll:
      return {who.others_blocks(), who.nothing()};
    default:  // barrier
      return {who.nothing(), who.nothing()};
  }
}

}  // namespace

Volume volume_of(Collective collective, Algorithm algorithm, int ranks, int rank, int root) {
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t node = static_cast<uint64_t>(rank + ranks - root) % n;
  uint64_t sons = 0;
  for (uint64_t son = 2 * node + 1; son <= 2 * node + 2 && son < n; ++son) ++sons;
  const Amounts amounts = amounts_of(collective, algorithm, {.n = n, .node = node, .sons = sons});
  return {.sent = amounts.sent.units,
          .fetched = amounts.fetched.units,
          .sent_text = amounts.sent.text,
          .fetched_text = amounts.fetched.text};
}

}  // namespace rondo::plan
