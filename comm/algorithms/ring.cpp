// The ring: every rank receives from prev and sends to next, and nobody else. The reference
// algorithm. For S bytes of data and N ranks a chunk is S/N (broadcast: one chunk of S, pipelined
// by slices).
//
// all_reduce, 2(N-1) hops:
//   1. send                     rank r sends its own part of chunk r-1.
//   2. recv_reduce_send  x N-2  it adds its own part to the partial sum of chunk r-2, r-3, ... as
//                               that passes by.
//   3. recv_reduce_copy_send    chunk r arrives with everybody else's part; adding its own
//                               finishes it. Out, and on.
//   4. recv_copy_send    x N-2  the finished chunks r-1, r-2, ... pass by: into Out, and on.
//   5. recv                     chunk r+1, the last.
//   On the wire each rank sends 2(N-1) chunks: 2(N-1)/N * S bytes. Partial sums live in slots only,
//   never in Out.
// reduce_scatter is 1 to 3 without the last send, all_gather is 3 to 5 without the reduction:
// (N-1)/N * S bytes each, N-1 hops. broadcast is a chain from the root: N-1 hops, every rank but
// the last sends S. reduce is the same chain backwards, from next of the root to the root.
// A scan is a chain from rank 0 to the last rank, pipelined by slices: N-1 hops.
//
// inclusive_scan: recv_reduce_copy_send. The sum of ranks 0..r-1 arrives, own In is added, the
//   result goes into Out, and on. Every rank but the last sends S.
// exclusive_scan: 1. send own In. 2. recv the In of prev into Out. 3. recv_reduce_copy_send: the
//   result of prev arrives; adding Out, which holds the In of prev, gives the own result. Into Out,
//   and on. Rank 1 has its result after 2, and rank 0 fills Out with the operator's identity. The
//   ranks between send 2S. Adding own In to what arrives would send half of that, but needs both
//   after Out has been written, and so could not be in place.
//
// Fold order of a scan: ((0 + 1) + 2) + ... Small floats are rounded once per hop. No step of a
// scan finishes a reduction: others continue every result.
//
// Fold order of chunk c: ((c+1 + c+2) + c+3) ... + c, ranks modulo N: what was received comes
// first, then own In. One rank finishes a chunk and all others copy its result, so that all hold
// the same bits. In place: chunk c of In is read once, before or in the very move that writes chunk
// c of Out.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

/// Phases 1 and 2: afterwards the partial sum of chunk r is on its way to rank r.
void start_reducing(Schedule& s) {
  const int prev = around(s.rank - 1, s.ranks), next = around(s.rank + 1, s.ranks);
  const int first = around(s.rank - 1, s.ranks);
  s.steps.push_back(move(first, {in(first)}, {slot(next, first)}));
  for (int hop = 1; hop <= s.ranks - 2; ++hop) {
    const int c = around(first - hop, s.ranks);
    s.steps.push_back(move(c, {slot(prev, c), in(c)}, {slot(next, c)}));
  }
}

/// Phases 4 and 5: finished chunks pass by.
void pass_round(Schedule& s) {
  const int prev = around(s.rank - 1, s.ranks), next = around(s.rank + 1, s.ranks);
  for (int hop = 1; hop <= s.ranks - 2; ++hop) {
    const int c = around(s.rank - hop, s.ranks);
    s.steps.push_back(move(c, {slot(prev, c)}, {out(c), slot(next, c)}));
  }
  const int last = around(s.rank + 1, s.ranks);
  s.steps.push_back(move(last, {slot(prev, last)}, {out(last)}));
}

void ring_all_reduce(Schedule& s) {
  const int prev = around(s.rank - 1, s.ranks), next = around(s.rank + 1, s.ranks), c = s.rank;
  s.chunks = s.ranks;
  start_reducing(s);
  s.steps.push_back(move(c, {slot(prev, c), in(c)}, {out(c), slot(next, c)}, true));
  pass_round(s);
}

void ring_reduce_scatter(Schedule& s) {
  const int prev = around(s.rank - 1, s.ranks), c = s.rank;
  s.chunks = s.ranks;
  start_reducing(s);
  s.steps.push_back(move(c, {slot(prev, c), in(c)}, {out(c)}, true));
}

void ring_all_gather(Schedule& s) {
  const int next = around(s.rank + 1, s.ranks), c = s.rank;
  s.chunks = s.ranks;
  s.steps.push_back(move(c, {in(c)}, {out(c), slot(next, c)}));
  pass_round(s);
}

void ring_broadcast(Schedule& s) {
  const int prev = around(s.rank - 1, s.ranks), next = around(s.rank + 1, s.ranks);
  s.chunks = 1;
  std::vector<Operand> destinations{out(0)};
  if (next != s.root) destinations.push_back(slot(next, 0));
  s.steps.push_back(move(0, {s.rank == s.root ? in(0) : slot(prev, 0)}, std::move(destinations)));
}

void ring_reduce(Schedule& s) {
  const int prev = around(s.rank - 1, s.ranks), next = around(s.rank + 1, s.ranks);
  s.chunks = 1;
  if (prev == s.root) {
    s.steps.push_back(move(0, {in(0)}, {slot(next, 0)}));
  } else if (s.rank != s.root) {
    s.steps.push_back(move(0, {slot(prev, 0), in(0)}, {slot(next, 0)}));
  } else {
    s.steps.push_back(move(0, {slot(prev, 0), in(0)}, {out(0)}, true));
  }
}

void ring_inclusive_scan(Schedule& s) {
  const int prev = s.rank - 1, next = s.rank + 1;
  s.chunks = 1;
  if (s.rank == 0) {  // two moves, because a single In to a single slot may go by reference
    s.steps.push_back(move(0, {in(0)}, {slot(next, 0)}));
    s.steps.push_back(move(0, {in(0)}, {out(0)}));
    return;
  }
  std::vector<Operand> destinations{out(0)};
  if (next < s.ranks) destinations.push_back(slot(next, 0));
  s.steps.push_back(move(0, {slot(prev, 0), in(0)}, std::move(destinations)));
}

void ring_exclusive_scan(Schedule& s) {
  const int prev = s.rank - 1, next = s.rank + 1;
  s.chunks = 1;
  if (next < s.ranks) s.steps.push_back(move(0, {in(0)}, {slot(next, 0)}));
  if (s.rank == 0) {
    s.steps.push_back(move(0, {identity(0)}, {out(0)}));
    return;
  }
  std::vector<Operand> result{out(0)};
  if (next < s.ranks) result.push_back(slot(next, 0));
  if (s.rank == 1) {
    s.steps.push_back(move(0, {slot(prev, 0)}, std::move(result)));
    return;
  }
  s.steps.push_back(move(0, {slot(prev, 0)}, {out(0)}));
  s.steps.push_back(move(0, {slot(prev, 0), out(0)}, std::move(result)));
}

Terms ring_all_reduce_terms(const Load& l) { return shared_terms(l, 2 * (l.p - 1), 0); }

/// broadcast, and reduce but for what it folds. Every rank but the ends receives and sends.
Terms ring_chain_terms(const Load& l) {
  return pipelined(l, l.p - 1, l.p <= 2 ? 1 : 2, l.p <= 2 ? 1 : 0);
}

Terms ring_inclusive_scan_terms(const Load& l) {
  Terms terms = ring_chain_terms(l);
  terms.reduced_bytes = l.n;
  return terms;
}

/// Of a rank between, as soon as there is one with two ranks before it.
Terms ring_exclusive_scan_terms(const Load& l) {
  if (l.p <= 2) return ring_chain_terms(l);
  Terms terms = pipelined(l, l.p - 1, l.p <= 3 ? 3 : 4, l.p <= 3 ? 1 : 0);
  terms.memory_bytes = 4 * l.n;
  terms.reduced_bytes = l.n;
  return terms;
}

/// `steps` steps in each of which every rank sends a chunk. A chunk passes p links in p steps.
WireTerms ring_wire(const Load& l, double steps, double chunk, std::string_view text) {
  return {.hops = steps * l.on.ring_links / l.p,
          .messages = steps * l.messages(chunk),
          .bytes = l.on.ring_share * steps * chunk,
          .both_bytes = 2 * l.on.ring_share * steps * chunk,
          .text = l.on.ring_share > 1 ? "" : text};
}
WireTerms ring_all_reduce_wire(const Load& l) {
  return ring_wire(l, 2 * (l.p - 1), l.n / l.p, "2(N-1)/N * S");
}
WireTerms ring_half_wire(const Load& l) { return ring_wire(l, l.p - 1, l.n, "(N-1)/N * S"); }

/// A chain of which `links` are between hosts.
WireTerms ring_chain_wire(const Load& l, double links, double share, double both) {
  return {.hops = links,
          .messages = l.messages(l.n),
          .bytes = share * l.n,
          .both_bytes = both * l.n,
          .fill_bytes = (links - 1) * std::min(l.n, l.slot)};
}
WireTerms ring_down_wire(const Load& l) {
  return ring_chain_wire(l, l.on.down_links, l.on.down_share, l.on.down_both);
}

/// Every rank but the first sends twice.
WireTerms ring_exclusive_scan_wire(const Load& l) {
  WireTerms wire = ring_down_wire(l);
  wire.bytes = 2 * l.on.late_share * l.n;
  wire.both_bytes = 2 * l.on.late_both * l.n;
  if (l.p > 2) wire.messages *= 2;
  return wire;
}

constexpr CollectiveTraits kRingCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = ring_all_reduce,
     .terms = ring_all_reduce_terms,
     .volume = [](const Position& at) -> Volume { return {.sent = at.there_and_back()}; },
     .wire = ring_all_reduce_wire,
     .least_depth = 2},
    {.collective = Collective::kReduceScatter,
     .build = ring_reduce_scatter,
     .terms = [](const Load& l) { return half_terms(l, l.p - 1, 0, true); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .wire = ring_half_wire,
     .least_depth = 2},
    {.collective = Collective::kAllGather,
     .build = ring_all_gather,
     .terms = [](const Load& l) { return half_terms(l, l.p - 1, 0, false); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .wire = ring_half_wire,
     .least_depth = 2},
    {.collective = Collective::kBroadcast,
     .build = ring_broadcast,
     .terms = ring_chain_terms,
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.node + 1 < at.n ? at.everything() : Amount{}};
     },
     .wire = ring_down_wire},
    {.collective = Collective::kReduce,
     .build = ring_reduce,
     .terms =
         [](const Load& l) {
           Terms terms = ring_chain_terms(l);
           terms.reduced_bytes = l.n;
           return terms;
         },
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_others(at.everything())}; },
     .wire =
         [](const Load& l) {
           return ring_chain_wire(l, l.on.up_links, l.on.up_share, l.on.up_both);
         }},
    {.collective = Collective::kInclusiveScan,
     .build = ring_inclusive_scan,
     .terms = ring_inclusive_scan_terms,
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.is_last() ? Amount{} : at.everything()};
     },
     .wire = ring_down_wire,
     .folds_along = true},
    {.collective = Collective::kExclusiveScan,
     .build = ring_exclusive_scan,
     .terms = ring_exclusive_scan_terms,
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.is_last()   ? Amount{}
                       : at.is_root() ? at.everything()
                                      : Amount{2 * at.n, "2S"}};
     },
     .wire = ring_exclusive_scan_wire,
     .folds_along = true},
    {.collective = Collective::kBarrier,
     .build = ring_all_reduce,
     .terms = ring_all_reduce_terms,
     .wire = ring_all_reduce_wire},  // of its byte there is one chunk: depth 1 will do
};

}  // namespace

extern constinit const AlgorithmTraits kRing{
    .algorithm = Algorithm::kRing, .folds_in_rank_order = false, .collectives = kRingCollectives};

}  // namespace rondo::algorithms
