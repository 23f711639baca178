// Hosts, leaders and rails: the words of the hierarchical algorithms. Internal to comm/algorithms.
//
// A host's ranks are counted from 0 in rank order, and with them its rails: rail l joins the ranks
// number l of all hosts, so there are as many rails as the smallest host has ranks. Ranks beyond
// that are on no rail. Hosts form a ring, or a chain from the root's host on, for each rail.
#pragma once

#include <algorithm>

#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {

/// Ranks of the smallest host.
inline int rails_of(const base::HostMap& hosts) {
  size_t least = hosts.ranks_on(0).size();
  for (int h = 1; h < hosts.hosts(); ++h) least = std::min(least, hosts.ranks_on(h).size());
  return static_cast<int>(least);
}

/// Where a rank is.
struct Rails {
  const base::HostMap& map;
  int hosts, rails;
  int host, local;            // the own host, and the rank's number there
  std::span<const int> here;  // the host's ranks

  explicit Rails(const Schedule& s)
      : map(*s.hosts),
        hosts(map.hosts()),
        rails(rails_of(map)),
        host(map.host_of(s.rank)),
        local(map.local_rank(s.rank)),
        here(map.ranks_on(host)) {}

  int ranks_here() const { return static_cast<int>(here.size()); }
  int ranks_on(int h) const { return static_cast<int>(map.ranks_on(h).size()); }
  bool on_rail() const { return local < rails; }
  /// Rank number `l` of host `h`, which is counted round all hosts.
  int rank(int h, int l) const { return map.ranks_on(around(h, hosts))[static_cast<size_t>(l)]; }
  int mate(int l) const { return here[static_cast<size_t>(l)]; }
  /// On the own rail.
  int prev() const { return rank(host - 1, local); }
  int next() const { return rank((host + 1) % hosts, local); }

  /// Calls f(number) for the own host's other ranks, the next one first.
  template <class F>
  void for_mates(F f) const {
    for (int i = 1; i < ranks_here(); ++i) f((local + i) % ranks_here());
  }
  /// Likewise for the other rails' ranks.
  template <class F>
  void for_rail_mates(F f) const {
    for_mates([&](int l) {
      if (l < rails) f(l);
    });
  }
};

/// Slots to the host's other ranks, after `operands`, but not to rank `but`.
inline std::vector<Operand> slots_to_mates(const Rails& at, int chunk,
                                           std::vector<Operand> operands, int but = -1) {
  at.for_mates([&](int l) {
    if (at.mate(l) != but) operands.push_back(slot(at.mate(l), chunk));
  });
  return operands;
}

/// `first`, and the contributions of the host's ranks to `chunk` in rank order, the own from In.
inline std::vector<Operand> slots_from_host(const Schedule& s, const Rails& at, int chunk,
                                            std::vector<Operand> first = {}) {
  for (const int p : at.here) first.push_back(p == s.rank ? in(chunk) : slot(p, chunk));
  return first;
}

}  // namespace rondo::algorithms
