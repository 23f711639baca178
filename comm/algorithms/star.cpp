// The star: each rank talks to the root and to no other. For all_reduce, reduce and broadcast it
// is the naive baseline, here to be measured against: the root moves (N-1) * S bytes each way while
// the others wait. (Where messages are small and ranks few, one hop is hard to beat: the cost model
// then reduces so.) gather and scatter are stars by their nature. S bytes, N ranks.
//
// reduce:      1. send to the root; the root folds all in rank order 0..N-1, its own from In.
// broadcast:   1. the root sends to all.
// all_reduce:  both, with rank 0 as the root: 2(N-1) messages through one rank, 2 hops.
// gather:      1. send the own block; the root puts block p where rank p's belongs.
// scatter:     1. the root sends block p to rank p.
//
// In place: the root reads a range of its In in, or before, the move that writes the same range of
// its Out; the others have sent theirs before anything comes back.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

constexpr int kCentre = 0;  // of an all_reduce, which has no root

void star_all_reduce(Schedule& s) {
  s.chunks = 1;
  if (s.rank == kCentre) {
    s.steps.push_back(move(0, slots_from_all(s, 0), slots_to_all(s, 0, {out(0)}), true));
  } else {
    s.steps.push_back(move(0, {in(0)}, {slot(kCentre, 0)}));
    s.steps.push_back(move(0, {slot(kCentre, 0)}, {out(0)}));
  }
}

void star_reduce(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    s.steps.push_back(move(0, slots_from_all(s, 0), {out(0)}, true));
  } else {
    s.steps.push_back(move(0, {in(0)}, {slot(s.root, 0)}));
  }
}

void star_broadcast(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    s.steps.push_back(move(0, {in(0)}, slots_to_all(s, 0, {out(0)})));
  } else {
    s.steps.push_back(move(0, {slot(s.root, 0)}, {out(0)}));
  }
}

void star_gather(Schedule& s) {
  s.chunks = s.ranks;
  if (s.rank != s.root) {
    s.steps.push_back(move(s.rank, {in(s.rank)}, {slot(s.root, s.rank)}));
    return;
  }
  s.steps.push_back(move(s.rank, {in(s.rank)}, {out(s.rank)}));
  for (int i = 1; i < s.ranks; ++i) {
    const int p = (s.rank + i) % s.ranks;
    s.steps.push_back(move(p, {slot(p, p)}, {out(p)}));
  }
}

void star_scatter(Schedule& s) {
  s.chunks = s.ranks;
  if (s.rank != s.root) {
    s.steps.push_back(move(s.rank, {slot(s.root, s.rank)}, {out(s.rank)}));
    return;
  }
  for (int i = 1; i < s.ranks; ++i) {
    const int p = (s.rank + i) % s.ranks;
    s.steps.push_back(move(p, {in(p)}, {slot(p, p)}));
  }
  s.steps.push_back(move(s.rank, {in(s.rank)}, {out(s.rank)}));
}

/// All but the all_reduce: the root serves every peer.
Terms star_terms(const Load& l, double memory_bytes, double reduced_bytes) {
  return {.hops = 1,
          .peers = l.p - 2,
          .slot_bytes = (l.p - 1) * l.n,
          .one_way_bytes = (l.p - 1) * l.n,
          .memory_bytes = memory_bytes,
          .reduced_bytes = reduced_bytes};
}

/// gather and scatter.
Terms blocks_terms(const Load& l) { return star_terms(l, (l.p + 1) * l.n, 0); }

/// Messages of `bytes` to or from every rank on another host.
WireTerms star_wire(const Load& l, double hops, double bytes) {
  return {.hops = hops,
          .messages = hops * l.on.outside_root * l.messages(bytes),
          .bytes = l.on.outside_root * bytes,
          .both_bytes = hops * l.on.outside_root * bytes};
}
WireTerms one_way_star_wire(const Load& l) { return star_wire(l, 1, l.n); }

// All terms are the root's.
constexpr CollectiveTraits kStarCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = star_all_reduce,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .slot_bytes = 2 * (l.p - 1) * l.n,
               .memory_bytes = 2 * l.n,
               .reduced_bytes = (l.p - 1) * l.n};
     },
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.is_root() ? at.to_everybody() : at.everything()};
     },
     .wire = [](const Load& l) { return star_wire(l, 2, l.n); }},
    {.collective = Collective::kReduce,
     .build = star_reduce,
     .terms = [](const Load& l) { return star_terms(l, 2 * l.n, (l.p - 1) * l.n); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_others(at.everything())}; },
     .wire = one_way_star_wire},
    {.collective = Collective::kBroadcast,
     .build = star_broadcast,
     .terms = [](const Load& l) { return star_terms(l, 2 * l.n, 0); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_root(at.to_everybody())}; },
     .wire = one_way_star_wire},
    {.collective = Collective::kGather,
     .build = star_gather,
     .terms = blocks_terms,
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_others(at.block())}; },
     .wire = one_way_star_wire},
    {.collective = Collective::kScatter,
     .build = star_scatter,
     .terms = blocks_terms,
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.of_root(at.others_blocks())};
     },
     .wire = one_way_star_wire},
};

}  // namespace

extern constinit const AlgorithmTraits kStar{.algorithm = Algorithm::kStar,
                                             .collectives = kStarCollectives};

}  // namespace rondo::algorithms
