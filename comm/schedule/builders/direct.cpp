// The direct algorithms: ranks read and write each other's buffers in place, without slots. They
// need every buffer to be within everybody's reach, and they bracket the access: before it `wait
// posted` (a peer's buffers belong to this operation only once it has called), after it signal and
// `wait signalled` for all (no call ends while a peer may still touch its buffers).
//
// one-shot all_reduce:
//   1. wait posted, all peers.
//   2. reduce        every In in rank order 0..N-1 into the own Out.
//   3. signal.  4. wait signalled, all peers.
//   (N-1) * S bytes read by each rank. NOT in place: a fast rank would overwrite its In while
//   slower ones still read it.
// one-shot broadcast: the others pull In of the root (S bytes each, all at once); the root waits
// until they have.
// two-shot all_reduce:
//   1. wait posted, all peers.
//   2. reduce_push   chunk r of every In in rank order, into chunk r of every Out.
//   3. signal.  4. wait signalled, all peers.
//   (N-1)/N * S bytes read and as many written into peers by each rank: every input is read once
//   and every output written once, which is the lower bound. In place: chunk r of every buffer is
//   touched by rank r alone, before signal.
// two-shot reduce_scatter: the same, into the own Out only. (N-1)/N * S bytes read.
// two-shot all_gather: pushes the own In into every Out. Push and not pull, because one move with N
// destinations reads its source once, where pulling reads it N times over; (N-1)/N * S bytes
// written into peers by each rank either way.
// two-shot reduce: rank r reduces chunk r of every In into the root's Out: all share the work.
// two-shot gather: everybody pushes its block into the root's Out.
// one-shot scatter: everybody pulls its block from the root's In.
// two-shot all_to_all: each rank pushes its blocks into all Outs. NOT in place: a fast rank would
// overwrite a block that a slower one has not sent.
#include "comm/schedule/builders/parts.hpp"

namespace rondo::schedule {
namespace {

std::vector<Operand> all_inputs(const Schedule& s, int chunk) {
  return in_rank_order(s, chunk, [chunk](int p) { return peer_in(p, chunk); });
}

std::vector<Operand> all_outputs(const Schedule& s, int chunk) {
  std::vector<Operand> operands{out(chunk)};
  for (int i = 1; i < s.ranks; ++i) operands.push_back(peer_out((s.rank + i) % s.ranks, chunk));
  return operands;
}

void bracketed(Schedule& s, Step step) {
  wait_for_all(s, Flag::kPosted);
  s.steps.push_back(std::move(step));
  s.steps.push_back(signal());
  wait_for_all(s, Flag::kSignalled);
}

}  // namespace

void direct_one_shot_all_reduce(Schedule& s) {
  s.chunks = 1;
  bracketed(s, move(0, all_inputs(s, 0), {out(0)}, true));
}

void direct_one_shot_broadcast(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    // Before the own copy: nobody waits for that, but counters stay equal.
    s.steps.push_back(signal());
    s.steps.push_back(move(0, {in(0)}, {out(0)}));
    wait_for_all(s, Flag::kSignalled);
  } else {
    s.steps.push_back(wait(Flag::kPosted, s.root));
    s.steps.push_back(move(0, {peer_in(s.root, 0)}, {out(0)}));
    s.steps.push_back(signal());
  }
}

void direct_two_shot_all_reduce(Schedule& s) {
  s.chunks = s.ranks;
  bracketed(s, move(s.rank, all_inputs(s, s.rank), all_outputs(s, s.rank), true));
}

void direct_two_shot_reduce_scatter(Schedule& s) {
  s.chunks = s.ranks;
  bracketed(s, move(s.rank, all_inputs(s, s.rank), {out(s.rank)}, true));
}

void direct_two_shot_all_gather(Schedule& s) {
  s.chunks = s.ranks;
  bracketed(s, move(s.rank, {in(s.rank)}, all_outputs(s, s.rank)));
}

void direct_one_shot_scatter(Schedule& s) {
  s.chunks = s.ranks;
  if (s.rank == s.root) {
    s.steps.push_back(signal());
    s.steps.push_back(move(s.rank, {in(s.rank)}, {out(s.rank)}));
    wait_for_all(s, Flag::kSignalled);
  } else {
    s.steps.push_back(wait(Flag::kPosted, s.root));
    s.steps.push_back(move(s.rank, {peer_in(s.root, s.rank)}, {out(s.rank)}));
    s.steps.push_back(signal());
  }
}

void direct_two_shot_reduce(Schedule& s) {
  s.chunks = s.ranks;
  const Operand to = s.rank == s.root ? out(s.rank) : peer_out(s.root, s.rank);
  bracketed(s, move(s.rank, all_inputs(s, s.rank), {to}, true));
}

void direct_two_shot_gather(Schedule& s) {
  s.chunks = s.ranks;
  if (s.rank == s.root) {
    s.steps.push_back(signal());
    s.steps.push_back(move(s.rank, {in(s.rank)}, {out(s.rank)}));
    wait_for_all(s, Flag::kSignalled);
  } else {
    s.steps.push_back(wait(Flag::kPosted, s.root));
    s.steps.push_back(move(s.rank, {in(s.rank)}, {peer_out(s.root, s.rank)}));
    s.steps.push_back(signal());
  }
}

void direct_two_shot_all_to_all(Schedule& s) {
  const int n = s.ranks;
  s.chunks = n * n;
  wait_for_all(s, Flag::kPosted);
  for (int i = 0; i < n; ++i) {
    const int to = (s.rank + i) % n;
    const Operand target = to == s.rank ? out(s.rank) : peer_out(to, s.rank);
    s.steps.push_back(move(s.rank * n + to, {in(to)}, {target}));
  }
  s.steps.push_back(signal());
  wait_for_all(s, Flag::kSignalled);
}

}  // namespace rondo::schedule
