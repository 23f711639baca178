// How ranks lie on hosts, in the numbers on which costs depend.
#pragma once

#include "comm/base/host_map.hpp"

namespace rondo::algorithms {

/// Doubles, because formulas are. All 0 but `hosts`: all ranks are on one host.
struct HostSpread {
  double hosts = 1;
  double least = 0, most = 0;  // ranks of the smallest host, and of the largest
  double outside = 0;          // ranks that are not on the smallest host
  double outside_root = 0;     // ranks that are not on the root's host
  double pairs = 0;            // one rank on a host, one elsewhere: of the host with the most pairs
  double outside_two = 0;      // ranks not on a host plus those not on the next one: the most
  double later_pairs = 0;      // of these, the ones whose second rank is the larger (or smaller)
  // The ring of ranks; the chain from the root, which has all its links but the one to the root; and
  // the chain to it, which has all but the one from the root: links between hosts, and the most that
  // leave, or enter, one host.
  double ring_links = 0, ring_share = 0;
  double down_links = 0, down_share = 0;
  double up_links = 0, up_share = 0;
  double late_share = 0;  // as down_share, but the root's own link counts half
  // The same, but that leave and enter one host.
  double down_both = 0, up_both = 0, late_both = 0;
  // The binary heap of ranks under the root: links between hosts on the longest way down; the most
  // of a host with parents, or children, elsewhere; and with both.
  double heap_depth = 0, heap_share = 0, heap_links = 0;
};

/// O(ranks). Rooted collectives are counted from `root`, all others from rank 0.
HostSpread spread_of(const base::HostMap& hosts, int root = 0);

}  // namespace rondo::algorithms
