// The words in which builders are written, and the list of builders. Internal to comm/schedule; no
// algorithm in here.
#pragma once

#include <utility>

#include "comm/schedule/schedule.hpp"

namespace rondo::schedule {

inline Operand in(int chunk) { return {.place = Place::kIn, .peer = -1, .chunk = chunk}; }
inline Operand out(int chunk) { return {.place = Place::kOut, .peer = -1, .chunk = chunk}; }
inline Operand slot(int peer, int chunk) {
  return {.place = Place::kSlot, .peer = peer, .chunk = chunk};
}
/// As a destination: the own published slot. As a source: what `peer` published.
inline Operand published(int chunk, int peer = -1) {
  return {.place = Place::kPublished, .peer = peer, .chunk = chunk};
}
inline Operand peer_in(int peer, int chunk) {
  return {.place = Place::kPeerIn, .peer = peer, .chunk = chunk};
}
inline Operand peer_out(int peer, int chunk) {
  return {.place = Place::kPeerOut, .peer = peer, .chunk = chunk};
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

// Each fills in s.chunks and s.steps, for s.ranks >= 2.
void ring_all_reduce(Schedule& s);
void ring_reduce_scatter(Schedule& s);
void ring_all_gather(Schedule& s);
void ring_broadcast(Schedule& s);
void ring_reduce(Schedule& s);

void one_shot_all_reduce(Schedule& s);
void one_shot_all_gather(Schedule& s);
void one_shot_broadcast(Schedule& s);

void two_shot_all_reduce(Schedule& s);
void two_shot_reduce_scatter(Schedule& s);
void two_shot_all_gather(Schedule& s);
void two_shot_all_to_all(Schedule& s);

void direct_one_shot_all_reduce(Schedule& s);
void direct_one_shot_broadcast(Schedule& s);
void direct_one_shot_scatter(Schedule& s);
void direct_two_shot_all_reduce(Schedule& s);
void direct_two_shot_reduce_scatter(Schedule& s);
void direct_two_shot_all_gather(Schedule& s);
void direct_two_shot_reduce(Schedule& s);
void direct_two_shot_gather(Schedule& s);
void direct_two_shot_all_to_all(Schedule& s);

void tree_all_reduce(Schedule& s);
void tree_reduce(Schedule& s);
void tree_broadcast(Schedule& s);

void star_all_reduce(Schedule& s);
void star_reduce(Schedule& s);
void star_broadcast(Schedule& s);
void star_gather(Schedule& s);
void star_scatter(Schedule& s);

void flat_barrier(Schedule& s);
void exchange_barrier(Schedule& s);

}  // namespace rondo::schedule
