// The formulas of an algorithm: what it costs and what it moves, as functions of the number of
// ranks and the size. They say on their own what the schedules must do; tests compare the two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "comm/algorithms/spread.hpp"

namespace rondo::algorithms {

/// What crosses the wire between hosts.
struct WireTerms {
  double hops = 0;             // of its latency, one after the other
  double messages = 0;         // that the busiest rank sends, or receives
  double bytes = 0;            // that leave the busiest host, or enter it, whichever are more
  double both_bytes = 0;       // that leave or enter a host: of the one where these are the most
  double fill_bytes = 0;       // of a pipeline: that one host passes on before the next one begins
  std::string_view text = "";  // `bytes` in words; empty where words are longer than the number
};

/// What a collective costs one rank (the busiest), in units that a link profile prices.
struct Terms {
  double hops = 0;           // of latency, one after the other
  double peers = 0;          // served or polled beyond the first of each hop
  double slot_bytes = 0;     // into slots plus out of slots
  double one_way_bytes = 0;  // of these, how many more go one way than the other
  double memory_bytes = 0;   // of own or peers' buffers, read plus written
  double reduced_bytes = 0;  // folded into others
  // What the kernel copies between processes where a direct algorithm's buffers are not mapped;
  // memory_bytes contains those bytes, too.
  double process_copies = 0;
  double process_copied_bytes = 0;
  WireTerms wire{};  // none where all ranks are on one host
};

/// What the terms depend on.
struct Load {
  double p;     // ranks, at least 2
  double n;     // bytes of the collective's own count argument: of one block, where it has blocks
  double slot;  // bytes of a slot
  HostSpread on{};  // the hosts

  double q() const { return (p - 1) / p; }
  double all() const { return p * n; }  // bytes of all blocks
  /// Messages that `bytes` take: one for each slot.
  double messages(double bytes) const { return std::max(1.0, bytes / slot); }
};

/// Bytes that one rank moves, as a multiple of S/N, and in words. S: all data (the larger buffer).
struct Amount {
  uint64_t units = 0;
  std::string_view text = "0";
  uint64_t parts = 0;  // if not 0: a multiple of S/parts instead

  /// REQUIRES: size, ranks > 0.
  double bytes(double size, uint64_t ranks) const {
    return size * static_cast<double>(units) / static_cast<double>(parts != 0 ? parts : ranks);
  }
};

/// Counted as schedule::Traffic counts: a published slot once. Exact where all chunks have one
/// length.
struct Volume {
  Amount sent{}, fetched{};
};

/// A rank as the volume depends on it.
struct Position {
  uint64_t n;     // ranks, at least 2
  uint64_t node;  // counted from the root: 0 is the root, N-1 comes before it in the ring
  const base::HostMap* hosts = nullptr;  // where the volume depends on them
  int rank = 0, root = 0;

  bool is_root() const { return node == 0; }
  bool is_last() const { return node + 1 == n; }
  uint64_t children() const {  // in the binary heap
    return (2 * node + 1 < n ? 1 : 0) + (2 * node + 2 < n ? 1 : 0);
  }
  Amount everything() const { return {n, "S"}; }
  Amount block() const { return {1, "S/N"}; }
  Amount others_blocks() const { return {n - 1, "(N-1)/N * S"}; }
  Amount there_and_back() const { return {2 * (n - 1), "2(N-1)/N * S"}; }
  Amount to_everybody() const { return {(n - 1) * n, "(N-1) * S"}; }
  Amount to_later() const { return {(n - 1 - node) * n, "S for each later rank"}; }
  Amount to_children() const { return {children() * n, "S for each child"}; }
  Amount to_family() const {
    return {(children() + (is_root() ? 0 : 1)) * n, "S for parent and each child"};
  }
  Amount of_root(Amount amount) const { return is_root() ? amount : Amount{}; }
  Amount of_others(Amount amount) const { return is_root() ? Amount{} : amount; }
};

}  // namespace rondo::algorithms
