// Two-shot-direct: rank r does all the work on chunk r, and reads and writes its peers' buffers in
// place, without slots. Needs every buffer to be within every rank's reach.
//
// all_reduce:
//   1. wait posted, all peers.
//   2. reduce_push   chunk r of every In in rank order, into chunk r of every Out.
//   3. signal.  4. wait signalled, all peers.
//   (N-1)/N * S bytes read and as many written into peers by each rank: every input is read once
//   and every output written once, which is the lower bound. In place: chunk r of every buffer is
//   touched by rank r alone, before signal.
// reduce_scatter: the same, into the own Out only. (N-1)/N * S bytes read.
// all_gather: pushes the own In into every Out. Push and not pull, because one move with N
// destinations reads its source once, where pulling reads it N times over; (N-1)/N * S bytes
// written into peers by each rank either way.
// reduce: rank r reduces chunk r of every In into the root's Out: all share the work.
// gather: every rank pushes its block into the root's Out.
// all_to_all: each rank pushes its blocks into all Outs. NOT in place: a fast rank would overwrite
// a block that a slower one has not sent. No all_to_all_v: a rank does not know where its peers
// want their blocks.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

std::vector<Operand> all_outputs(const Schedule& s, int chunk) {
  std::vector<Operand> operands{out(chunk)};
  for (int i = 1; i < s.ranks; ++i) operands.push_back(peer_out((s.rank + i) % s.ranks, chunk));
  return operands;
}

Operand output_of(const Schedule& s, int rank, int chunk) {
  return rank == s.rank ? out(chunk) : peer_out(rank, chunk);
}

void two_shot_direct_all_reduce(Schedule& s) {
  s.chunks = s.ranks;
  among_all(s, {move(s.rank, all_inputs(s, s.rank), all_outputs(s, s.rank), true)});
}

void two_shot_direct_reduce_scatter(Schedule& s) {
  s.chunks = s.ranks;
  among_all(s, {move(s.rank, all_inputs(s, s.rank), {out(s.rank)}, true)});
}

void two_shot_direct_all_gather(Schedule& s) {
  s.chunks = s.ranks;
  among_all(s, {move(s.rank, {in(s.rank)}, all_outputs(s, s.rank))});
}

void two_shot_direct_reduce(Schedule& s) {
  s.chunks = s.ranks;
  among_all(s, {move(s.rank, all_inputs(s, s.rank), {output_of(s, s.root, s.rank)}, true)});
}

void two_shot_direct_gather(Schedule& s) {
  const int c = s.rank;
  s.chunks = s.ranks;
  at_root(s, move(c, {in(c)}, {out(c)}), move(c, {in(c)}, {peer_out(s.root, c)}));
}

void two_shot_direct_all_to_all(Schedule& s) {
  const int n = s.ranks;
  s.chunks = n * n;
  std::vector<Step> moves;
  for (int i = 0; i < n; ++i) {
    const int to = (s.rank + i) % n;
    moves.push_back(move(s.rank * n + to, {in(to)}, {output_of(s, to, s.rank)}));
  }
  among_all(s, std::move(moves));
}

constexpr CollectiveTraits kTwoShotDirectCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = two_shot_direct_all_reduce,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = 2 * l.n,
               .reduced_bytes = l.q() * l.n};
     },
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.others_blocks(), .fetched = at.others_blocks()};
     },
     .in = Touched::kEverywhere,
     .out = Touched::kEverywhere},
    {.collective = Collective::kReduceScatter,
     .build = two_shot_direct_reduce_scatter,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = l.all() + l.n,
               .reduced_bytes = l.q() * l.all()};
     },
     .volume = [](const Position& at) -> Volume { return {.fetched = at.others_blocks()}; },
     .in = Touched::kEverywhere},
    {.collective = Collective::kAllGather,
     .build = two_shot_direct_all_gather,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = l.all() + l.n,
               .process_copies = l.p - 1,
               .process_copied_bytes = l.q() * l.all()};
     },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .out = Touched::kEverywhere},
    {.collective = Collective::kReduce,
     .build = two_shot_direct_reduce,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = 2 * l.n,
               .reduced_bytes = l.n * (l.p - 1) / l.p};
     },
     .volume = [](const Position& at) -> Volume {
       return {.sent = at.of_others(at.block()), .fetched = at.others_blocks()};
     },
     .in = Touched::kEverywhere,
     .out = Touched::kOnRoot},
    {.collective = Collective::kGather,
     .build = two_shot_direct_gather,
     .terms = at_root_terms,
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_others(at.block())}; },
     .out = Touched::kOnRoot},
    {.collective = Collective::kAllToAll,
     .build = two_shot_direct_all_to_all,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = 2 * l.p * l.n,
               .process_copies = l.p - 1,
               .process_copied_bytes = (l.p - 1) * l.n};
     },
     .volume = [](const Position& at) -> Volume { return {.sent = at.others_blocks()}; },
     .in_place = false,
     .has_v_form = false,
     .out = Touched::kEverywhere},
};

}  // namespace

extern constinit const AlgorithmTraits kTwoShotDirect{
    .algorithm = Algorithm::kTwoShotDirect,
    .needs = {.references = true, .signals = true},
    .collectives = kTwoShotDirectCollectives};

}  // namespace rondo::algorithms
