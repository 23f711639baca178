// Copy engine: every rank fetches what it wants from its peers' buffers. On a device the moves are
// copies by the GPU's copy engines, on the caller's stream between two launches of a barrier
// (comm/device/device_runner_copies.cpp), so that almost no multiprocessor is taken while data
// move. As a schedule it is a direct algorithm like others, and proved as such.
//
// Ranks only read from peers: one that disagrees with the others about the call writes to its own
// Out and nowhere else.
//
// all_gather: the In of every peer; (N-1)/N * S bytes fetched.
// all_to_all: a block of the In of every peer. NOT in place: a fast rank would overwrite a block
// that a slower one has not fetched.
// gather: the root fetches all blocks.
// broadcast: the root's Out, into which the root has copied its In: Out is what every rank has.
//
// No reductions, which a copy engine cannot do; no scatter, because only its root has all of In,
// so the others could not say where it lies; no _v forms.
#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

Operand input_of(const Schedule& s, int rank, int chunk) {
  return rank == s.rank ? in(chunk) : peer_in(rank, chunk);
}

/// Every rank's In, block by block, into Out.
std::vector<Step> fetch_all(const Schedule& s) {
  std::vector<Step> moves;
  for (int i = 0; i < s.ranks; ++i) {
    const int from = (s.rank + i) % s.ranks;
    moves.push_back(move(from, {input_of(s, from, from)}, {out(from)}));
  }
  return moves;
}

void copy_engine_all_gather(Schedule& s) {
  s.chunks = s.ranks;
  among_all(s, fetch_all(s));
}

void copy_engine_all_to_all(Schedule& s) {
  const int n = s.ranks;
  s.chunks = n * n;
  std::vector<Step> moves;
  for (int i = 0; i < n; ++i) {
    const int from = (s.rank + i) % n;
    moves.push_back(move(from * n + s.rank, {input_of(s, from, s.rank)}, {out(from)}));
  }
  among_all(s, std::move(moves));
}

void copy_engine_gather(Schedule& s) {
  s.chunks = s.ranks;
  if (s.rank == s.root) {
    wait_for_all(s, Flag::kPosted);
    const std::vector<Step> moves = fetch_all(s);
    s.steps.insert(s.steps.end(), moves.begin(), moves.end());
    s.steps.push_back(signal());
  } else {
    s.steps.push_back(signal());
    s.steps.push_back(wait(Flag::kSignalled, s.root));
  }
}

void copy_engine_broadcast(Schedule& s) {
  s.chunks = 1;
  if (s.rank == s.root) {
    s.steps.push_back(move(0, {in(0)}, {out(0)}));
    s.steps.push_back(signal());
    s.steps.push_back(signal());
    wait_for_all(s, Flag::kSignalled);
  } else {
    s.steps.push_back(signal());
    s.steps.push_back(wait(Flag::kSignalled, s.root));
    s.steps.push_back(move(0, {peer_out(s.root, 0)}, {out(0)}));
    s.steps.push_back(signal());
  }
}

constexpr CollectiveTraits kCopyEngineCollectives[] = {
    {.collective = Collective::kAllGather,
     .build = copy_engine_all_gather,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = 2 * l.all(),
               .process_copies = l.p - 1,
               .process_copied_bytes = l.q() * l.all()};
     },
     .volume = [](const Position& at) -> Volume { return {.fetched = at.others_blocks()}; },
     .has_v_form = false,
     .in = Touched::kEverywhere},
    {.collective = Collective::kBroadcast,
     .build = copy_engine_broadcast,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 3,
               .peers = 3 * (l.p - 2),
               .memory_bytes = 4 * l.n,
               .process_copies = 1,
               .process_copied_bytes = l.n};
     },
     .volume = [](const Position& at) -> Volume {
       return {.fetched = at.of_others(at.everything())};
     },
     .out = Touched::kOnRoot},
    {.collective = Collective::kGather,
     .build = copy_engine_gather,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = 2 * l.all(),
               .process_copies = l.p - 1,
               .process_copied_bytes = l.q() * l.all()};
     },
     .volume = [](const Position& at) -> Volume {
       return {.fetched = at.of_root(at.others_blocks())};
     },
     .has_v_form = false,
     .in = Touched::kOnOthers},
    {.collective = Collective::kAllToAll,
     .build = copy_engine_all_to_all,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2,
               .peers = 2 * (l.p - 2),
               .memory_bytes = 2 * l.p * l.n,
               .process_copies = l.p - 1,
               .process_copied_bytes = (l.p - 1) * l.n};
     },
     .volume = [](const Position& at) -> Volume { return {.fetched = at.others_blocks()}; },
     .in_place = false,
     .has_v_form = false,
     .in = Touched::kEverywhere},
};

}  // namespace

extern constinit const AlgorithmTraits kCopyEngine{
    .algorithm = Algorithm::kCopyEngine,
    .needs = {.references = true, .signals = true, .copies = true},
    .collectives = kCopyEngineCollectives};

}  // namespace rondo::algorithms
