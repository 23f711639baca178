// Setup, fourth step: how many channels and slots, how large, on how many CPUs, by which profile.
#pragma once

#include "comm/setup/introduce.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::comm {

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

/// `config`: with rank 0's settings. `hosts`: of all ranks; `rank`: this one.
HostSizes size_up(const Introduced& introduced, const Config& config, const base::HostMap& hosts,
                  int rank);

}  // namespace rondo::comm
