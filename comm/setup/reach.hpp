// Setup, third step: which memory of the other ranks of its host every rank can touch.
#pragma once

#include <vector>

#include "comm/setup/introduce.hpp"
#include "transport/memory/arena.hpp"
#include "transport/shm/process_copy.hpp"

namespace rondo::comm {

/// By local rank. Equal on all ranks of a host in what is empty. Where a member is empty, buffers go
/// through slots.
struct PeerMemory {
  std::vector<transport::ArenaView> arenas;            // library memory, mapped here
  std::vector<transport::shm::PeerProcess> processes;  // the kernel copies any memory
};

/// Maps the others' arenas, and tries the kernel's copies unless RONDO_CMA, a pace or thread ranks
/// make them needless. An arena that cannot be mapped is no error.
Result<PeerMemory> reach_peers(Bootstrap& bootstrap, const Introduced& introduced);

}  // namespace rondo::comm
