// Flat: the barrier of counters. Every rank signals, and waits until all peers have. 1 hop, no
// payload; needs a transport with counters.
//
// A transport without counters gets an all_reduce of one byte instead, of which only the causality
// matters: a result that holds every rank's contribution cannot exist before every rank has called.
// The communicator lends one byte as In and one as Out. One-shot (published slots; 1 hop), two-shot
// (over links: 1 hop, N-1 messages of one byte) and the ring (2(N-1) hops, but only two neighbours)
// do it.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

void flat_barrier(Schedule& s) {
  s.chunks = 1;
  s.steps.push_back(signal());
  wait_for_all(s, Flag::kSignalled);
}

constexpr CollectiveTraits kFlatCollectives[] = {
    {.collective = Collective::kBarrier,
     .build = flat_barrier,
     .terms = [](const Load& l) -> Terms { return {.hops = 1, .peers = l.p - 2}; }},
};

}  // namespace

extern constinit const AlgorithmTraits kFlat{
    .algorithm = Algorithm::kFlat, .needs = {.signals = true}, .collectives = kFlatCollectives};

}  // namespace rondo::algorithms
