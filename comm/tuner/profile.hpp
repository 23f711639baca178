// The link profile: what the machine costs, as a handful of named constants, and how far measured
// times were from them. All that the cost model knows; thresholds between algorithms follow from
// these numbers and are written nowhere. A profile is built in or a file (profile_file.hpp), never
// measured at start-up: algorithms, and with them bits, would vary from run to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "rondo/types.hpp"
#include "transport/cuda_ipc/placement.hpp"

namespace rondo::tuner {

/// Measured over modelled time of one algorithm, at some sizes. Between them the factor is
/// interpolated over the logarithm of the size, beyond them it stays what it was.
struct Correction {
  struct Point {
    uint64_t bytes;  // the collective's own count argument, as in cost.hpp; ascending
    double factor;
  };
  Collective collective;
  Algorithm algorithm;
  bool mapped;  // all ranks' buffers were library memory
  std::vector<Point> points;
};

/// Times in microseconds. A byte of the operation's own buffers costs memory_*, one of a peer's
/// buffer too; a byte that goes through a slot costs slot_* twice, once on its way in and once on
/// its way out.
struct LinkProfile {
  std::string name;
  double overhead_us;  // of a call, whatever it does
  double alpha_us;     // from one rank's flag to another rank that waits for it: one hop
  double peer_us;      // for each further peer that a rank serves or polls in the same hop
  double slot_us_per_byte;
  /// A wire carries both ways at once: what it costs more to fill one only.
  double one_way_us_per_byte;
  double memory_cached_us_per_byte;  // while all ranks' buffers fit the cache
  double memory_us_per_byte;         // when they are much larger
  double reduce_us_per_byte;         // gamma: to fold one byte into another, beyond reading it
  double process_copy_us;            // of a copy between processes by the kernel, whatever its size
  double process_copy_us_per_byte;   // for finding and pinning its pages, beyond the memory's time
  /// Ranks that can run at the same time; more of them take turns, and everything but overhead
  /// takes longer. 0: all.
  int parallel_ranks;

  size_t llc_bytes;   // last-level cache that the ranks share
  size_t slot_bytes;  // of a slot, also of a published one
  uint32_t slots;     // of a link, or published by a rank

  /// What the constants do not explain, measured with `corrected_ranks` ranks and used for as many
  /// only. None in built-in profiles.
  int corrected_ranks = 0;
  std::vector<Correction> corrections = {};
};

/// The constants that a prediction is linear in, by name: for files and for fitting.
struct Constant {
  const char* name;
  double LinkProfile::*value;
};
inline constexpr Constant kConstants[] = {
    {"overhead_us", &LinkProfile::overhead_us},
    {"alpha_us", &LinkProfile::alpha_us},
    {"peer_us", &LinkProfile::peer_us},
    {"slot_us_per_byte", &LinkProfile::slot_us_per_byte},
    {"one_way_us_per_byte", &LinkProfile::one_way_us_per_byte},
    {"memory_cached_us_per_byte", &LinkProfile::memory_cached_us_per_byte},
    {"memory_us_per_byte", &LinkProfile::memory_us_per_byte},
    {"reduce_us_per_byte", &LinkProfile::reduce_us_per_byte},
    {"process_copy_us", &LinkProfile::process_copy_us},
    {"process_copy_us_per_byte", &LinkProfile::process_copy_us_per_byte},
};
inline constexpr size_t kConstantCount = std::size(kConstants);

/// As many cores as ranks, one host.
LinkProfile shared_memory_profile();

/// More ranks than cores on one host: a hop costs a scheduling turn. `cores`: how many there are.
/// `base`: the same host with a core for every rank; its corrections do not hold here.
LinkProfile oversubscribed_profile(int cores = 2, LinkProfile base = shared_memory_profile());

/// A wire per rank, such as a network or --pace, between ranks that cost `base` themselves (its
/// corrections do not hold here). REQUIRES: bytes_per_second > 0 (infinity allowed),
/// latency_seconds >= 0.
LinkProfile wire_profile(double bytes_per_second, double latency_seconds,
                         LinkProfile base = shared_memory_profile());

/// Ranks on GPUs, of which `slowest` is the slowest way between two. Estimates from data sheets:
/// measured nowhere.
LinkProfile device_profile(transport::cuda_ipc::Reach slowest);

/// The same with slots so small that the FIFOs of a communicator with one link to every peer take
/// at most `most_bytes` a rank (a few more where slots would fall below 4 KiB).
LinkProfile fit_to_memory(LinkProfile profile, int ranks, int channels,
                          size_t most_bytes = size_t{12} << 20);

}  // namespace rondo::tuner
