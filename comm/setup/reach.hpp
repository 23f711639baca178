// Setup, fourth step: which memory of the other ranks of its host every rank can touch.
#pragma once

#include <vector>

#include "comm/bootstrap/session/bootstrap.hpp"
#include "comm/setup/facts.hpp"
#include "transport/memory/arena.hpp"
#include "transport/shm/process_copy.hpp"

namespace rondo::comm {

/// By local rank. Equal on all ranks of a host in what is empty. Where a member is empty, buffers go
/// through slots.
struct PeerMemory {
  std::vector<transport::ArenaView> arenas;            // library memory, mapped here
  std::vector<transport::shm::PeerProcess> processes;  // the kernel copies any memory
};

/// What this rank reaches: maps the others' arenas, and tries the kernel's copies unless RONDO_CMA, a
/// pace or thread ranks make them needless. An arena that cannot be mapped is no error. `ranks`: by
/// rank; `exchanged`: with them, each rank's arena as its only descriptor, if it has one.
Result<PeerMemory> reach_peers(const Bootstrap& bootstrap, const std::vector<RankFacts>& ranks,
                               std::vector<Parcel>& exchanged);

}  // namespace rondo::comm
