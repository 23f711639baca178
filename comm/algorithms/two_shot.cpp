// Two-shot: a reduce-scatter and an all-gather, each by one direct exchange between all pairs, over
// slots. A chunk is S/N.
//
// all_reduce, 2 hops:
//   1. send  x N-1            rank r sends chunk p of its In to rank p, beginning with p = r+1 so
//                             that no rank is the first of all others.
//   2. recv_reduce_copy_send  rank r folds chunk r of all ranks in rank order 0..N-1, its own from
//                             In; into Out and to all others.
//   3. recv  x N-1            chunk p comes from rank p into Out.
//   On the wire each rank sends 2(N-1) chunks: 2(N-1)/N * S bytes, as a ring does, in 2 hops
//   instead of 2(N-1), for which it needs links between all pairs.
// reduce_scatter is 1 and 2 without the send, all_gather is 2 and 3 without the reduction:
// (N-1)/N * S bytes, 1 hop.
//
// all_to_all is an exchange without anything else: rank r sends block p of its In to rank p, which
// puts it at block r of its Out. (N-1)/N * S bytes, 1 hop. Chunk r * N + p goes from r to p.
//
// A scan is an exchange in one direction, 1 hop: rank r sends its In to every later rank, and folds
// what the earlier ones sent in rank order, at once (inclusive: its own In last, from In). Rank 0 of
// an exclusive_scan fills Out with the operator's identity. (N-1-r) * S bytes.
//
// The barrier over links is the exchange alone, of one byte, undivided: 1 hop, N-1 messages.
//
// In place: chunks p != r of In have been sent in phase 1 before phase 3 overwrites them; chunk r
// is overwritten by the move that reads it.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

void scatter(Schedule& s) {
  for (int i = 1; i < s.ranks; ++i) {
    const int p = (s.rank + i) % s.ranks;
    s.steps.push_back(move(p, {in(p)}, {slot(p, p)}));
  }
}

void collect(Schedule& s) {
  for (int i = 1; i < s.ranks; ++i) {
    const int p = (s.rank + i) % s.ranks;
    s.steps.push_back(move(p, {slot(p, p)}, {out(p)}));
  }
}

void two_shot_all_reduce(Schedule& s) {
  const int c = s.rank;
  s.chunks = s.ranks;
  scatter(s);
  s.steps.push_back(move(c, slots_from_all(s, c), slots_to_all(s, c, {out(c)}), true));
  collect(s);
}

void two_shot_reduce_scatter(Schedule& s) {
  const int c = s.rank;
  s.chunks = s.ranks;
  scatter(s);
  s.steps.push_back(move(c, slots_from_all(s, c), {out(c)}, true));
}

void two_shot_all_gather(Schedule& s) {
  const int c = s.rank;
  s.chunks = s.ranks;
  s.steps.push_back(move(c, {in(c)}, slots_to_all(s, c, {out(c)})));
  collect(s);
}

void two_shot_all_to_all(Schedule& s) {
  const int n = s.ranks;
  s.chunks = n * n;
  for (int i = 1; i < n; ++i) {
    const int to = (s.rank + i) % n, chunk = s.rank * n + to;
    s.steps.push_back(move(chunk, {in(to)}, {slot(to, chunk)}));
  }
  s.steps.push_back(move(s.rank * n + s.rank, {in(s.rank)}, {out(s.rank)}));
  for (int i = 1; i < n; ++i) {
    const int from = around(s.rank - i, n), chunk = from * n + s.rank;
    s.steps.push_back(move(chunk, {slot(from, chunk)}, {out(from)}));
  }
}

void two_shot_scan(Schedule& s) {
  s.chunks = 1;
  for (int p = s.rank + 1; p < s.ranks; ++p) s.steps.push_back(move(0, {in(0)}, {slot(p, 0)}));
  std::vector<Operand> sources;
  for (int p = 0; p < s.rank; ++p) sources.push_back(slot(p, 0));
  if (s.collective == Collective::kInclusiveScan) sources.push_back(in(0));
  if (sources.empty()) sources.push_back(identity(0));
  s.steps.push_back(move(0, std::move(sources), {out(0)}));
}

/// Of the last rank; the first one writes as many slots. `folds`: how many inputs it adds to one.
Terms two_shot_scan_terms(const Load& l, double folds) {
  return {.hops = 1,
          .peers = l.p - 2,
          .slot_bytes = (l.p - 1) * l.n,
          .one_way_bytes = (l.p - 1) * l.n,
          .memory_bytes = 2 * l.n,
          .reduced_bytes = folds * l.n};
}

Volume two_shot_scan_volume(const Position& at) { return {.sent = at.to_later()}; }

void exchange_barrier(Schedule& s) {
  s.chunks = 1;
  s.steps.push_back(move(0, {in(0)}, slots_to_all(s, 0, {})));
  s.steps.push_back(move(0, slots_from_all(s, 0), {out(0)}, true));
}

/// `shots` exchanges of a chunk for every pair of ranks.
WireTerms exchange_wire(const Load& l, double shots, double chunk) {
  return {.hops = shots,
          .messages = shots * l.on.outside * l.messages(chunk),
          .bytes = shots * l.on.pairs * chunk,
          .both_bytes = 2 * shots * l.on.pairs * chunk};
}
WireTerms two_shot_half_wire(const Load& l) { return exchange_wire(l, 1, l.n); }

WireTerms two_shot_scan_wire(const Load& l) {
  return {.hops = 1,
          .messages = l.on.outside * l.messages(l.n),
          .bytes = l.on.later_pairs * l.n,
          .both_bytes = l.on.pairs * l.n};
}

constexpr CollectiveTraits kTwoShotCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = two_shot_all_reduce,
     .terms = [](const Load& l) { return shared_terms(l, 2, 2 * (l.p - 2)); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.there_and_back()}; },
     .wire = [](const Load& l) { return exchange_wire(l, 2, l.n / l.p); },
     .least_depth = 2},
    {.collective = Collective::kReduceScatter,
     .build = two_shot_reduce_scatter,
     .terms = [](const Load& l) { return half_terms(l, 1, l.p - 2, true); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .wire = two_shot_half_wire},
    {.collective = Collective::kAllGather,
     .build = two_shot_all_gather,
     .terms = [](const Load& l) { return half_terms(l, 1, l.p - 2, false); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .wire = two_shot_half_wire},
    {.collective = Collective::kAllToAll,
     .build = two_shot_all_to_all,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 1,
               .peers = l.p - 2,
               .slot_bytes = 2 * (l.p - 1) * l.n,
               .memory_bytes = 2 * l.p * l.n};
     },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .wire = two_shot_half_wire},
    {.collective = Collective::kInclusiveScan,
     .build = two_shot_scan,
     .terms = [](const Load& l) { return two_shot_scan_terms(l, l.p - 1); },
     .volume = two_shot_scan_volume,
     .wire = two_shot_scan_wire},
    {.collective = Collective::kExclusiveScan,
     .build = two_shot_scan,
     .terms = [](const Load& l) { return two_shot_scan_terms(l, l.p - 2); },
     .volume = two_shot_scan_volume,
     .wire = two_shot_scan_wire},
    {.collective = Collective::kBarrier,
     .build = exchange_barrier,
     // One exchange, in which a rank still serves and polls every peer.
     .terms = [](const Load& l) { return shared_terms(l, 1, 2 * (l.p - 2)); },
     .wire = two_shot_half_wire},
};

}  // namespace

extern constinit const AlgorithmTraits kTwoShot{.algorithm = Algorithm::kTwoShot,
                                                .collectives = kTwoShotCollectives};

}  // namespace rondo::algorithms
