// The link profile: the machine's costs as a handful of named constants, and corrections to
// measured times. It is all that the cost model knows; thresholds between algorithms follow from
// these numbers and are written nowhere. A profile is built in or a file (profile_file.hpp), never
// measured at start-up, because then algorithms, and with them bits, would vary from run to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "comm/base/host_map.hpp"
#include "rondo/types.hpp"
#include "transport/cuda_ipc/placement.hpp"
#include "transport/pace/pace.hpp"

namespace rondo::tuner {

/// Measured over modelled time of one algorithm, at some sizes; interpolated over the logarithm of
/// the size, and constant beyond the first and last.
struct Correction {
  struct Point {
    uint64_t bytes;  // the collective's own count argument, as in cost.hpp; ascending
    double factor;
  };
  Collective collective;
  Algorithm algorithm;
  bool mapped;  // all ranks' buffers were library memory; false between hosts
  std::vector<Point> points;
};

/// What was measured with ranks that lay on hosts like this, and is used for those only.
struct Corrections {
  base::HostMap hosts;
  std::vector<Correction> tables;
};

/// Times in microseconds. A byte of the operation's own or a peer's buffers costs memory_*; a byte
/// that goes through a slot costs slot_* twice, on its way in and out.
struct LinkProfile {
  std::string name;
  double overhead_us;  // of every call
  double alpha_us;     // one hop: from one rank's flag to a rank that waits for it
  double peer_us;      // for each further peer that a rank serves or polls in the same hop
  double slot_us_per_byte;
  /// The extra cost of using one direction only, since a wire carries both at once.
  double one_way_us_per_byte;
  double memory_cached_us_per_byte;  // while all ranks' buffers fit the cache
  double memory_us_per_byte;         // when they are much larger
  double reduce_us_per_byte;         // gamma: folding one byte into another, without reading it
  double process_copy_us;            // of each copy between processes by the kernel
  double process_copy_us_per_byte;   // for finding and pinning its pages, beyond the memory's time
  double wire_alpha_us;              // from a rank to one on another host, beyond alpha_us
  double wire_message_us;   // for each message that a rank sends to another host, or receives
  double wire_us_per_byte;  // on the link of a host, in the busier direction; its ranks share it
  /// Beyond that, of each byte of both directions: where they share the link, or the cores that serve it.
  double wire_both_us_per_byte;
  /// Of a pace: for each byte that leaves a rank because ranks access each other's buffers in place.
  double pace_us_per_byte = 0;
  /// Ranks that can run at the same time; with more ranks everything but overhead takes longer. 0:
  /// all.
  int parallel_ranks;

  size_t llc_bytes;   // last-level cache that the ranks share
  size_t slot_bytes;  // of a slot, published ones included
  uint32_t slots;     // of a link, or published by a rank
  // What they are at least where ranks are on several hosts.
  size_t wire_slot_bytes;
  uint32_t wire_slots;

  /// On GPUs: alpha_us and peer_us are those of operations by LL, which may have at most `ll_bytes` on
  /// a rank; these are the others', in place and through slots. Not in files.
  struct OnDevice {
    uint64_t ll_bytes;
    double direct_alpha_us, direct_peer_us, staged_alpha_us, staged_peer_us;
  };
  std::optional<OnDevice> on_device = {};

  /// Corrections to the constants' predictions, once for each way in which ranks lie on hosts.
  /// Built-in profiles have none.
  std::vector<Corrections> corrections = {};
};

/// The constants in which a prediction is linear, by name: for files and for fitting.
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
    {"wire_alpha_us", &LinkProfile::wire_alpha_us},
    {"wire_message_us", &LinkProfile::wire_message_us},
    {"wire_us_per_byte", &LinkProfile::wire_us_per_byte},
    {"wire_both_us_per_byte", &LinkProfile::wire_both_us_per_byte},
};
inline constexpr size_t kConstantCount = std::size(kConstants);
/// The last ones are those between hosts; the others can be measured on one.
inline constexpr size_t kHostConstantCount = kConstantCount - 4;

/// For one host with as many cores as ranks.
LinkProfile shared_memory_profile();

/// For more ranks than cores on one host: a hop costs a time slice. `cores`: their number. `base`:
/// the same host with a core for every rank; its corrections do not apply.
LinkProfile oversubscribed_profile(int cores = 2, LinkProfile base = shared_memory_profile());

/// For a wire per rank, such as a network or --pace, between ranks with the costs of `base` (whose
/// corrections do not apply). REQUIRES: bytes_per_second > 0 (infinity allowed), latency_seconds >=
/// 0.
LinkProfile wire_profile(double bytes_per_second, double latency_seconds,
                         LinkProfile base = shared_memory_profile());

/// `wire` for ranks that share cores. A rank that waits for the wire gives its core to another one, and
/// waits for a turn when its message is there: for each one that it waits for.
LinkProfile taking_turns(LinkProfile wire);

/// For ranks on GPUs, with so many blocks each; `slowest` is the slowest path between two of them,
/// `ranks_of_a_gpu` how many of the `ranks` share one at most. On one GPU what an H200 took, but for
/// slots; between GPUs estimates from data sheets.
LinkProfile device_profile(transport::cuda_ipc::Reach slowest, int channels, int ranks,
                           int ranks_of_a_gpu);
/// The most blocks that a rank takes by itself. `near`: all ranks' GPUs access each other; otherwise slots
/// share less memory, and more blocks would make them too small.
constexpr int most_channels(bool near) { return near ? 16 : 8; }
/// How many bytes of a block's part of an operation go by LL. A block folds what has come by LL in
/// pieces, the smaller the more ranks there are.
constexpr size_t most_ll_bytes(bool near, int ranks) {
  return (near && ranks <= 4 ? size_t{16} : size_t{8}) << 10;
}

/// `profile` with slots small enough that the FIFOs of a communicator with one link to every peer
/// take at most `most_bytes` a rank (somewhat more if slots would fall below 4 KiB).
LinkProfile fit_to_memory(LinkProfile profile, int ranks, int channels,
                          size_t most_bytes = size_t{12} << 20);

/// Ranks of one host, and what they share.
struct RanksOnHost {
  int ranks;
  int ranks_elsewhere = 0;  // on other hosts
  int channels = 1;         // of each rank; one more is for messages
  int cores;                // that the ranks together may use
  std::optional<transport::PaceOptions> wire = std::nullopt;  // between them

  /// More pipelines than cores: they take turns.
  bool is_oversubscribed() const { return ranks * channels > cores; }
};

/// The profile of these ranks. `host`: the same host with a core for every rank.
LinkProfile profile_of(const RanksOnHost& where, const LinkProfile& host);

}  // namespace rondo::tuner
