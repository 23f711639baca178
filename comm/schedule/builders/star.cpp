// The star: everybody talks to the root and to nobody else. For all_reduce, reduce and broadcast it
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
#include "comm/schedule/builders/parts.hpp"

namespace rondo::schedule {
namespace {

constexpr int kCentre = 0;  // of an all_reduce, which has no root

std::vector<Operand> out_and_slots_to_all(const Schedule& s) {
  std::vector<Operand> operands{out(0)};
  for (int i = 1; i < s.ranks; ++i) operands.push_back(slot((s.rank + i) % s.ranks, 0));
  return operands;
}

std::vector<Operand> slots_from_all(const Schedule& s) {
  return in_rank_order(s, 0, [](int p) { return slot(p, 0); });
}

}  // namespace

void star_all_reduce(Schedule& s) {
  s.chunks = 1;
  if (s.rank == kCentre) {
    s.steps.push_back(move(0, slots_from_all(s), out_and_slots_to_all(s), true));
  } else {
    s.steps.push_back(move(0, {in(0)}, {slot(kCentre, 0)}));
    s.steps.push_back(move(0, {slot(kCentre, 0)}, {out(0)}));
  }
}

void star_reduce(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    s.steps.push_back(move(0, slots_from_all(s), {out(0)}, true));
  } else {
    s.steps.push_back(move(0, {in(0)}, {slot(s.root, 0)}));
  }
}

void star_broadcast(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    s.steps.push_back(move(0, {in(0)}, out_and_slots_to_all(s)));
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

}  // namespace rondo::schedule
