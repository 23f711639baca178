// Setup, fourth step: how many channels and slots, how large, on how many CPUs, by which profile.
#pragma once

#include "comm/setup/introduce.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::comm {

/// Equal on all ranks.
struct HostSizes {
  int ranks, channels;
  int cpus;  // that the ranks together may use
  bool paced;
  uint32_t depth;                   // slots of a FIFO
  size_t slot_bytes;                // payload of a slot
  tuner::LinkProfile profile;       // for these ranks and CPUs
  transport::shm::FifoSizes fifos;  // of the transport
};

/// `config`: with rank 0's settings.
HostSizes size_up(const Introduced& introduced, const Config& config);

}  // namespace rondo::comm
