// How many channels and slots, how large, on how many CPUs, by which profile.
#pragma once

#include "comm/base/host_map.hpp"
#include "comm/setup/link_profile.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::comm {

/// How many CPUs the ranks may use.
struct CpuShares {
  int cpus;  // those of this host together
  /// The host with the most ranks for a CPU; equal on all ranks.
  struct {
    int ranks, cpus;
  } busiest;
};

/// Equal on all ranks but for what is said to be this host's.
struct HostSizes {
  int ranks, channels;
  uint32_t depth;              // slots of a FIFO
  size_t slot_bytes;           // payload of a slot
  tuner::LinkProfile profile;  // for these ranks and CPUs
  bool paced;
  // This host's:
  int local_ranks;
  int cpus;                         // that they together may use
  transport::shm::FifoSizes fifos;  // between them
};

/// `links`: rank 0's. `config`: with rank 0's settings. `hosts`: of all ranks; `rank`: this one.
HostSizes size_up(const CpuShares& shares, const tuner::LinkProfile& links, const Config& config,
                  const base::HostMap& hosts, int rank);

}  // namespace rondo::comm
