// One-shot: every rank publishes, and reads what all others publish: one exchange, the lowest latency.
// Needs a transport with published slots (one writer, many readers), so that a rank writes its data
// once and not N-1 times. S bytes, N ranks.
//
// all_reduce:
//   1. publish  every rank writes its In into its next published slot: S bytes, once.
//   2. reduce   every rank folds all N contributions in rank order 0..N-1 into its own Out, its
//               own from In.
//   S bytes published and (N-1) * S read by each rank; everybody does the same N-1 additions, in
//   the same order, and so has the same bits. All data is one chunk.
// all_gather (S: all blocks together): 1. publish the own block, 2. copy every peer's block to its
// place: S/N and (N-1)/N * S.
// broadcast: 1. the root publishes, 2. the others copy: S and S.
//
// In place: a range of In has been published before the move that writes the same range of Out, and
// that move reads it too.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

void one_shot_all_reduce(Schedule& s) {
  s.chunks = 1;
  s.steps.push_back(move(0, {in(0)}, {published(0)}));
  s.steps.push_back(
      move(0, in_rank_order(s, 0, [](int p) { return published(0, p); }), {out(0)}, true));
}

void one_shot_all_gather(Schedule& s) {
  s.chunks = s.ranks;
  s.steps.push_back(move(s.rank, {in(s.rank)}, {published(s.rank), out(s.rank)}));
  for (int i = 1; i < s.ranks; ++i) {  // from the next rank on: not everybody reads rank 0 first
    const int p = (s.rank + i) % s.ranks;
    s.steps.push_back(move(p, {published(p, p)}, {out(p)}));
  }
}

void one_shot_broadcast(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    s.steps.push_back(move(0, {in(0)}, {published(0), out(0)}));
  } else {
    s.steps.push_back(move(0, {published(0, s.root)}, {out(0)}));
  }
}

Terms one_shot_all_reduce_terms(const Load& l) {
  return {.hops = 1,
          .peers = l.p - 2,
          .slot_bytes = l.p * l.n,
          .memory_bytes = 3 * l.n,
          .reduced_bytes = (l.p - 1) * l.n};
}

constexpr CollectiveTraits kOneShotCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = one_shot_all_reduce,
     .terms = one_shot_all_reduce_terms,
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.everything(), .fetched = at.to_everybody()};
     },
     .ll = true},
    {.collective = Collective::kAllGather,
     .build = one_shot_all_gather,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 1, .peers = l.p - 2, .slot_bytes = l.all(), .memory_bytes = l.all() + l.n};
     },
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.block(), .fetched = at.others_blocks()};
     },
     .ll = true},
    {.collective = Collective::kBroadcast,
     .build = one_shot_broadcast,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 1, .slot_bytes = 2 * l.n, .memory_bytes = 2 * l.n};
     },
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.of_root(at.everything()), .fetched = at.of_others(at.everything())};
     }},
    {.collective = Collective::kBarrier,
     .build = one_shot_all_reduce,
     .terms = one_shot_all_reduce_terms,
     .ll = true},
};

}  // namespace

extern constinit const AlgorithmTraits kOneShot{.algorithm = Algorithm::kOneShot,
                                                .needs = {.publish = true},
                                                .scales_small_floats = false,
                                                .collectives = kOneShotCollectives};

}  // namespace rondo::algorithms
