// The words in which builders and terms are written. Internal to comm/algorithms.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"

namespace rondo::algorithms {

using schedule::Action;
using schedule::Flag;
using schedule::Operand;
using schedule::OperandKind;
using schedule::Step;

inline Operand in(int chunk) { return {.place = OperandKind::kIn, .peer = -1, .chunk = chunk}; }
inline Operand out(int chunk) { return {.place = OperandKind::kOut, .peer = -1, .chunk = chunk}; }
inline Operand slot(int peer, int chunk) {
  return {.place = OperandKind::kSlot, .peer = peer, .chunk = chunk};
}
/// As a destination: the own published slot. As a source: what `peer` published.
inline Operand published(int chunk, int peer = -1) {
  return {.place = OperandKind::kPublished, .peer = peer, .chunk = chunk};
}
inline Operand peer_in(int peer, int chunk) {
  return {.place = OperandKind::kPeerIn, .peer = peer, .chunk = chunk};
}
inline Operand peer_out(int peer, int chunk) {
  return {.place = OperandKind::kPeerOut, .peer = peer, .chunk = chunk};
}
inline Operand identity(int chunk) {
  return {.place = OperandKind::kIdentity, .peer = -1, .chunk = chunk};
}

inline Step move(int chunk, std::vector<Operand> sources, std::vector<Operand> destinations,
                 bool finishes = false) {
  return {.action = Action::kMove,
          .finishes = finishes,
          .chunk = chunk,
          .sources = std::move(sources),
          .destinations = std::move(destinations)};
}
inline Step signal() { return {.action = Action::kSignal, .sources = {}, .destinations = {}}; }
inline Step wait(Flag flag, int peer) {
  return {.action = Action::kWait, .flag = flag, .peer = peer, .sources = {}, .destinations = {}};
}

/// `rank` counted round the ring; also for negative values down to -ranks.
inline int around(int rank, int ranks) { return (rank + ranks) % ranks; }

/// Adds a wait for every peer, the next rank first, so that not everybody looks at rank 0 at once.
inline void wait_for_all(Schedule& s, Flag flag) {
  for (int i = 1; i < s.ranks; ++i) s.steps.push_back(wait(flag, (s.rank + i) % s.ranks));
}

/// The contributions of all ranks to `chunk` in rank order 0..N-1: the own one from In, peers' as
/// `of(peer)` says.
template <class OfPeer>
std::vector<Operand> in_rank_order(const Schedule& s, int chunk, OfPeer of) {
  std::vector<Operand> sources;
  sources.reserve(static_cast<size_t>(s.ranks));
  for (int p = 0; p < s.ranks; ++p) sources.push_back(p == s.rank ? in(chunk) : of(p));
  return sources;
}

/// Slots to every peer, after `operands`.
inline std::vector<Operand> slots_to_all(const Schedule& s, int chunk,
                                         std::vector<Operand> operands) {
  for (int i = 1; i < s.ranks; ++i) operands.push_back(slot((s.rank + i) % s.ranks, chunk));
  return operands;
}

inline std::vector<Operand> slots_from_all(const Schedule& s, int chunk) {
  return in_rank_order(s, chunk, [chunk](int p) { return slot(p, chunk); });
}

/// Direct: every rank's In.
inline std::vector<Operand> all_inputs(const Schedule& s, int chunk) {
  return in_rank_order(s, chunk, [chunk](int p) { return peer_in(p, chunk); });
}

// The brackets of direct access: before it `wait posted` (a peer's buffers belong to this operation
// only once it has posted), after it signal and `wait signalled` for all (no call ends while a peer
// may still touch its buffers).

/// All ranks touch the buffers of all.
inline void among_all(Schedule& s, std::vector<Step> moves) {
  wait_for_all(s, Flag::kPosted);
  s.steps.insert(s.steps.end(), moves.begin(), moves.end());
  s.steps.push_back(signal());
  wait_for_all(s, Flag::kSignalled);
}

/// The others touch the root's buffers, with `of_other`. The root signals before its own move: no
/// rank waits for that, but counters must stay equal.
inline void at_root(Schedule& s, Step of_root, Step of_other) {
  if (s.rank == s.root) {
    s.steps.push_back(signal());
    s.steps.push_back(std::move(of_root));
    wait_for_all(s, Flag::kSignalled);
  } else {
    s.steps.push_back(wait(Flag::kPosted, s.root));
    s.steps.push_back(std::move(of_other));
    s.steps.push_back(signal());
  }
}

/// The terms of an all_reduce whose ranks share the work and send each chunk through slots twice.
inline Terms shared_terms(const Load& l, double hops, double peers) {
  return {.hops = hops,
          .peers = peers,
          .slot_bytes = 4 * l.q() * l.n,
          .memory_bytes = 2 * l.n,
          .reduced_bytes = l.q() * l.n};
}

/// The terms of its halves: a reduce_scatter, or an all_gather.
inline Terms half_terms(const Load& l, double hops, double peers, bool reduces) {
  return {.hops = hops,
          .peers = peers,
          .slot_bytes = 2 * l.q() * l.all(),
          .memory_bytes = l.all() + l.n,
          .reduced_bytes = reduces ? l.q() * l.all() : 0};
}

/// The terms of at_root().
inline Terms at_root_terms(const Load& l) {
  return {.hops = 2,
          .peers = l.p - 2,
          .memory_bytes = 2 * l.n,
          .process_copies = 1,
          .process_copied_bytes = l.n};
}

/// The terms of a chain or a tree from or to a root, which pipelines: the last rank begins when one
/// slot has come through all ranks between. `passes`: how often the busiest rank has the data in a
/// slot; `one_way`: how often more one way than the other.
inline Terms pipelined(const Load& load, double hops, double passes, double one_way) {
  return {.hops = hops,
          .slot_bytes = passes * load.n + 2 * (hops - 1) * std::min(load.n, load.slot),
          .one_way_bytes = one_way * load.n,
          .memory_bytes = 2 * load.n};
}

}  // namespace rondo::algorithms
