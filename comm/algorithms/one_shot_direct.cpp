// One-shot-direct: ranks read each other's In in place, without slots. Needs every buffer to be
// within every rank's reach.
//
// all_reduce:
//   1. wait posted, all peers.
//   2. reduce        every In in rank order 0..N-1 into the own Out.
//   3. signal.  4. wait signalled, all peers.
//   (N-1) * S bytes read by each rank. NOT in place: a fast rank would overwrite its In while
//   slower ones still read it.
// broadcast: the others read In of the root (S bytes each, all at once); the root waits until they
// have. scatter: the same, each its own block.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

void one_shot_direct_all_reduce(Schedule& s) {
  s.chunks = 1;
  among_all(s, {move(0, all_inputs(s, 0), {out(0)}, true)});
}

void one_shot_direct_broadcast(Schedule& s) {
  s.chunks = 1;
  at_root(s, move(0, {in(0)}, {out(0)}), move(0, {peer_in(s.root, 0)}, {out(0)}));
}

void one_shot_direct_scatter(Schedule& s) {
  const int c = s.rank;
  s.chunks = s.ranks;
  at_root(s, move(c, {in(c)}, {out(c)}), move(c, {peer_in(s.root, c)}, {out(c)}));
}

constexpr CollectiveTraits kOneShotDirectCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = one_shot_direct_all_reduce,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = (l.p + 1) * l.n,
               .reduced_bytes = (l.p - 1) * l.n};
     },
     .volume = [](const Position& at) -> Volume { return {.fetched = at.to_everybody()}; },
     .in_place = false,
     .in = Touched::kEverywhere},
    {.collective = Collective::kBroadcast,
     .build = one_shot_direct_broadcast,
     .terms = at_root_terms,
     .volume = [](const Position& at) -> Volume {
       return {.fetched = at.of_others(at.everything())};
     },
     .in = Touched::kOnRoot},
    {.collective = Collective::kScatter,
     .build = one_shot_direct_scatter,
     .terms = at_root_terms,
     .volume = [](const Position& at) -> Volume { return {.fetched = at.of_others(at.block())}; },
     .in = Touched::kOnRoot},
};

}  // namespace

extern constinit const AlgorithmTraits kOneShotDirect{
    .algorithm = Algorithm::kOneShotDirect,
    .needs = {.references = true, .signals = true},
    .collectives = kOneShotDirectCollectives};

}  // namespace rondo::algorithms
