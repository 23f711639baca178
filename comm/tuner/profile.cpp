// The built-in profiles. The shared-memory one follows all-reduces of two pinned processes on a
// 2-core Zen 3 server VM, 8 B to 128 MiB, within a factor of two (tuner_test has the table); a byte
// through a slot, 70 ps there, is taken as 40, because on Zen 4 it is 20 to 40. The
// scheduling time slices of ranks that share cores are estimates. So is the wire between hosts, of a
// network of 100 Gb/s: that is 12.5 GB/s, of which protocols leave about 10; 10 us lie between the 2
// of RDMA and the 25 of TCP in the kernel. What matters is where one algorithm overtakes another.
#include "comm/tuner/profile.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace rondo::tuner {

LinkProfile shared_memory_profile() {
  return {.name = "shared memory",
          .overhead_us = 0.05,
          .alpha_us = 0.11,
          .peer_us = 0.03,
          .slot_us_per_byte = 4e-5,
          .one_way_us_per_byte = 0,
          .memory_cached_us_per_byte = 9e-6,
          .memory_us_per_byte = 3.5e-5,
          .reduce_us_per_byte = 8e-6,
          .process_copy_us = 2.5,
          .process_copy_us_per_byte = 1e-4,
          .wire_alpha_us = 10,
          .wire_message_us = 0.5,
          .wire_us_per_byte = 1e-4,
          .wire_both_us_per_byte = 0,
          .parallel_ranks = 0,
          .llc_bytes = size_t{32} << 20,
          .slot_bytes = size_t{128} << 10,
          .slots = 4,
          .wire_slot_bytes = size_t{192} << 10,  // see bench/notes.md, "Between hosts"
          .wire_slots = 4};
}

LinkProfile oversubscribed_profile(int cores, LinkProfile base) {
  LinkProfile profile = std::move(base);
  profile.corrections.clear();
  profile.name += ", more ranks than cores";
  profile.alpha_us = std::max(profile.alpha_us, 1.5);  // sched_yield to the next rank
  profile.parallel_ranks = std::max(cores, 1);
  // The more work a time slice can do, the fewer slices are needed.
  profile.slots = std::max(profile.slots, 8U);
  return profile;
}

LinkProfile wire_profile(double bytes_per_second, double latency_seconds, LinkProfile base) {
  LinkProfile profile = std::move(base);
  profile.corrections.clear();
  profile.name = "wire over " + profile.name;
  profile.alpha_us += latency_seconds * 1e6;
  // Half on the way in, half on the way out: a hop pays both.
  profile.slot_us_per_byte += 0.5e6 / bytes_per_second;
  profile.one_way_us_per_byte += 0.5e6 / bytes_per_second;
  profile.pace_us_per_byte = 1e6 / bytes_per_second;
  // The FIFO's capacity must exceed bandwidth * latency, or the FIFO sets the pace; within a
  // megabyte per link.
  profile.slots = std::max(profile.slots, 8U);
  const double in_flight =
      latency_seconds > 0 ? std::min(bytes_per_second * latency_seconds, 1e6) : 0.0;
  while (0.5 * static_cast<double>(profile.slot_bytes * profile.slots) < in_flight) {
    profile.slot_bytes *= 2;
  }
  return profile;
}

LinkProfile taking_turns(LinkProfile wire) {
  constexpr double kTurnUs = 40;  // an estimate
  wire.name += ", more ranks than cores";
  wire.alpha_us += kTurnUs;
  wire.peer_us += kTurnUs;
  return wire;
}

LinkProfile device_profile(transport::cuda_ipc::Reach slowest, int channels, int ranks,
                           int ranks_of_a_gpu) {
  // One GPU: what LL and two-shot-direct took on an H200, 8 KiB to 1 GiB (bench/results); slots are
  // estimated. Between GPUs estimates: about the bandwidth of their links, and the engine's own time
  // for a hop, which is most of it.
  struct Way {
    double alpha_us, slot_us_per_byte, memory_cached_us_per_byte, memory_us_per_byte;
  };
  constexpr Way kWays[] = {{3.5, 5e-6, 0, 0},            // one GPU
                           {4.2, 5e-6, 1.5e-6, 2e-6},    // NVLink
                           {5.2, 20e-6, 40e-6, 40e-6},   // peer access
                           {6.7, 40e-6, 0.6e-6, 1e-6}};  // host memory: own buffers are near; slots
                                                         // cross PCI Express twice
  const Way& way = kWays[static_cast<size_t>(slowest)];
  LinkProfile profile = shared_memory_profile();
  profile.name = "GPUs, " + std::string(name(slowest));
  profile.overhead_us = 4;  // a launch, the walk's beginning and end
  profile.alpha_us = way.alpha_us;
  profile.peer_us = 0.4;
  profile.slot_us_per_byte = way.slot_us_per_byte;
  // What a block moves, and what the memory of a GPU does for all its ranks.
  constexpr double kBlockBytesPerUs = 85e3, kGpuBytesPerUs = 3.8e6;
  const double own = std::max(1 / (kBlockBytesPerUs * channels), ranks_of_a_gpu / kGpuBytesPerUs);
  profile.memory_cached_us_per_byte = std::max(own, way.memory_cached_us_per_byte);
  profile.memory_us_per_byte = std::max(own, way.memory_us_per_byte);
  const double farther = way.alpha_us - kWays[0].alpha_us;
  const bool near = slowest != transport::cuda_ipc::Reach::kHost;
  profile.on_device = {.ll_bytes = most_ll_bytes(near, ranks) * static_cast<uint64_t>(channels),
                       .direct_alpha_us = 6.2 + farther,
                       .direct_peer_us = 1.5,
                       .staged_alpha_us = 11.4 + farther,
                       .staged_peer_us = 6.7};
  profile.reduce_us_per_byte = 0.1e-6;
  profile.llc_bytes = size_t{50} << 20;
  profile.slot_bytes = size_t{128} << 10;
  profile.slots = 8;
  return profile;
}

LinkProfile fit_to_memory(LinkProfile profile, int ranks, int channels, size_t most_bytes) {
  constexpr size_t kLeastSlotBytes = 4096;
  // Per rank: a link to every other rank, and its published slots.
  const size_t slots =
      (static_cast<size_t>(ranks) + 1) * static_cast<size_t>(channels) * profile.slots;
  while (slots * profile.slot_bytes > most_bytes && profile.slot_bytes > kLeastSlotBytes) {
    profile.slot_bytes /= 2;
  }
  return profile;
}

LinkProfile profile_of(const RanksOnHost& where, const LinkProfile& host) {
  const bool shared = where.is_oversubscribed();
  LinkProfile profile = shared ? oversubscribed_profile(where.cores, host) : host;
  if (where.wire) {
    profile = wire_profile(where.wire->bytes_per_second, where.wire->latency_seconds, host);
    if (shared) profile = taking_turns(profile);
  }
  if (shared) {
    profile.name +=
        ": " + std::to_string(where.ranks * where.channels) + " on " + std::to_string(where.cores);
  }
  if (where.ranks_elsewhere == 0) {
    return fit_to_memory(std::move(profile), where.ranks, where.channels + 1);
  }
  constexpr size_t kMostBytes = size_t{64} << 20;  // of a rank
  profile.slot_bytes = std::max(profile.slot_bytes, profile.wire_slot_bytes);
  profile.slots = std::max(profile.slots, profile.wire_slots);
  // Links to other hosts take memory only where they are used (transport/ucx), which few are.
  return fit_to_memory(std::move(profile), where.ranks, where.channels + 1, kMostBytes);
}

}  // namespace rondo::tuner
