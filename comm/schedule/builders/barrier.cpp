// Barriers: nobody leaves before everybody has come.
//
// flat: 1. signal.  2. wait signalled, all peers.
//   1 hop, no payload; needs a transport with counters.
//
// A transport without counters gets an all_reduce of one byte instead, of which only the causality
// matters: a result that holds every rank's contribution cannot exist before every rank has come.
// The communicator lends one byte as In and one as Out. build() takes for it: one-shot (published
// slots; 1 hop), two-shot (exchange_barrier in two_shot.cpp: over links, 1 hop, N-1 messages of one
// byte), ring (2(N-1) hops, but only two neighbours).
#include "comm/schedule/builders/parts.hpp"

namespace rondo::schedule {

void flat_barrier(Schedule& s) {
  s.chunks = 1;
  s.steps.push_back(signal());
  wait_for_all(s, Flag::kSignalled);
}

}  // namespace rondo::schedule
