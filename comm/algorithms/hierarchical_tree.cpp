// Hierarchical-tree: one rank of each host, the leader, talks to other hosts: few messages cross the
// wire one after the other. For small messages; large ones take the same link again and again. H
// hosts, S bytes. The leader is the host's first rank; on the root's host it is the root.
//
// all_reduce (and the barrier, of one byte):
//   1. send                   to the leader, which folds the host's parts in rank order.
//   2. recv_reduce_copy_send  The leaders fold in stages, by recursive multiplying: H is written as a
//                             product of factors g of at most 8, and in each stage the leaders form
//                             groups of g, who send each other what they have so far and fold all of
//                             it, in the same order everywhere. After log8(H) stages everyone has the
//                             whole sum; sums wait in Out meanwhile. If H has larger prime factors,
//                             as many leaders as needed give their sum to another one before and
//                             receive the result after.
//   3. recv                   from the leader.
//   log8(H) wire hops, or two more. In a stage a leader sends (g-1) * S bytes.
// broadcast: down a heap of hosts in which each has 8 children, and from every leader to its host.
// reduce: up the same heap; a leader folds its host's parts in rank order, then the children's sums.
//
// Fold order: depends on how ranks lie on hosts. All leaders finish by the same fold. In place: a
// leader reads its In in the move that first overwrites it; others have sent theirs before.
//
// Source: recursive multiplying is Ruefenacht, Bull and Booth, "Generalisation of recursive doubling
// for AllReduce", Parallel Computing 69 (2017); one leader for each host is in every MPI.
#include "comm/algorithms/rails.hpp"

namespace rondo::algorithms {
namespace {

/// Messages that a leader sends in one hop. The latency of a wire is that of many messages.
constexpr int kFan = 8;

/// The stages of `hosts` leaders.
struct Stages {
  int members = 1;           // leaders that take part; each of the others gives to one of them
  std::vector<int> factors;  // of `members`, at most kFan each

  explicit Stages(int hosts) {
    for (members = hosts; !divide(members); --members) factors.clear();
  }

 private:
  bool divide(int rest) {
    for (int g = kFan; g > 1; --g) {
      for (; rest % g == 0; rest /= g) factors.push_back(g);
    }
    return rest == 1;
  }
};

int leader_of(const Rails& at, int host) { return at.rank(host, 0); }

/// The hosts of this one's group in a stage, in order; `apart`: their distance.
std::vector<int> group_of(int host, int apart, int factor) {
  std::vector<int> group;
  const int first = host - host / apart % factor * apart;
  for (int i = 0; i < factor; ++i) group.push_back(first + i * apart);
  return group;
}

std::vector<Operand> slots_to_group(const Rails& at, const std::vector<int>& group,
                                    std::vector<Operand> operands) {
  const auto own =
      static_cast<size_t>(std::find(group.begin(), group.end(), at.host) - group.begin());
  for (size_t i = 1; i < group.size(); ++i) {
    operands.push_back(slot(leader_of(at, group[(own + i) % group.size()]), 0));
  }
  return operands;
}

/// Of a leader: folds what its host has with the others', until all is there.
void fold_in_stages(Schedule& s, const Rails& at, const Stages& stages) {
  const bool has_guest = at.host + stages.members < at.hosts;
  std::vector<Operand> sources = slots_from_host(s, at, 0);
  if (has_guest) sources.push_back(slot(leader_of(at, at.host + stages.members), 0));
  int apart = 1;
  for (const int factor : stages.factors) {
    const std::vector<int> group = group_of(at.host, apart, factor);
    s.steps.push_back(move(0, std::move(sources), slots_to_group(at, group, {out(0)})));
    sources.clear();
    for (const int host : group) {
      sources.push_back(host == at.host ? out(0) : slot(leader_of(at, host), 0));
    }
    apart *= factor;
  }
  std::vector<Operand> to = slots_to_mates(at, 0, {out(0)});
  if (has_guest) to.push_back(slot(leader_of(at, at.host + stages.members), 0));
  s.steps.push_back(move(0, std::move(sources), std::move(to), true));
}

void hierarchical_tree_all_reduce(Schedule& s) {
  const Rails at(s);
  const Stages stages(at.hosts);
  const int leader = at.mate(0);
  s.chunks = 1;
  if (s.rank != leader) {
    s.steps.push_back(move(0, {in(0)}, {slot(leader, 0)}));
    s.steps.push_back(move(0, {slot(leader, 0)}, {out(0)}));
  } else if (at.host >= stages.members) {
    const int host = leader_of(at, at.host - stages.members);
    s.steps.push_back(move(0, slots_from_host(s, at, 0), {slot(host, 0)}));
    s.steps.push_back(move(0, {slot(host, 0)}, slots_to_mates(at, 0, {out(0)})));
  } else {
    fold_in_stages(s, at, stages);
  }
}

/// A rank in the heap of hosts, whose top is the root's.
struct HostNode {
  int leader;                 // of the own host
  int parent = -1;            // leader of the parent; -1: this is the top
  std::vector<int> children;  // likewise

  HostNode(const Schedule& s, const Rails& at) {
    const int top = at.map.host_of(s.root), v = around(at.host - top, at.hosts);
    const auto leader_at = [&](int node) {
      return node == 0 ? s.root : leader_of(at, (top + node) % at.hosts);
    };
    leader = leader_at(v);
    if (v > 0) parent = leader_at((v - 1) / kFan);
    for (int c = kFan * v + 1; c <= kFan * v + kFan && c < at.hosts; ++c) {
      children.push_back(leader_at(c));
    }
  }
};

void hierarchical_tree_broadcast(Schedule& s) {
  const Rails at(s);
  const HostNode node(s, at);
  s.chunks = 1;
  if (s.rank != node.leader) {
    s.steps.push_back(move(0, {slot(node.leader, 0)}, {out(0)}));
    return;
  }
  std::vector<Operand> to{out(0)};
  for (const int child : node.children) to.push_back(slot(child, 0));
  s.steps.push_back(move(0, {node.parent < 0 ? in(0) : slot(node.parent, 0)},
                         slots_to_mates(at, 0, std::move(to))));
}

void hierarchical_tree_reduce(Schedule& s) {
  const Rails at(s);
  const HostNode node(s, at);
  s.chunks = 1;
  if (s.rank != node.leader) {
    s.steps.push_back(move(0, {in(0)}, {slot(node.leader, 0)}));
    return;
  }
  std::vector<Operand> sources = slots_from_host(s, at, 0);
  for (const int child : node.children) sources.push_back(slot(child, 0));
  const bool top = node.parent < 0;
  s.steps.push_back(move(0, std::move(sources), {top ? out(0) : slot(node.parent, 0)}, top));
}

// ---- Formulas, of the leader of the largest host.

/// Messages that a leader sends in all stages, and what stages take.
struct StageCounts {
  double stages = 0, messages = 0, guests = 0;  // guests: at most one
  explicit StageCounts(double hosts) {
    const Stages all(static_cast<int>(hosts));
    stages = static_cast<double>(all.factors.size());
    for (const int factor : all.factors) messages += factor - 1;
    guests = all.members < static_cast<int>(hosts) ? 1 : 0;
  }
};

double heap_children(double hosts) { return std::min<double>(kFan, hosts - 1); }
/// Hosts on the longest way down, but the first.
double heap_depth(double hosts) {
  double depth = 0;
  for (double last = hosts - 1; last > 0; last = static_cast<int>((last - 1) / kFan)) ++depth;
  return depth;
}

Terms hierarchical_tree_all_reduce_terms(const Load& l) {
  const StageCounts count(l.on.hosts);
  const double mates = l.on.most - 1, received = mates + count.messages + count.guests;
  return {.hops = count.stages + 2 * count.guests + (mates > 0 ? 2 : 0),
          .peers = 2 * std::max(0.0, mates - 1),
          .slot_bytes = 2 * received * l.n,
          .memory_bytes = 2 * (1 + count.stages) * l.n,
          .reduced_bytes = received * l.n};
}

WireTerms hierarchical_tree_all_reduce_wire(const Load& l) {
  const StageCounts count(l.on.hosts);
  const double sent = count.messages + count.guests;
  return {.hops = count.stages + 2 * count.guests,
          .messages = sent * l.messages(l.n),
          .bytes = sent * l.n,
          .both_bytes = 2 * sent * l.n};
}

Terms hierarchical_tree_terms(const Load& l, bool reduces) {
  const double mates = l.on.most - 1, children = heap_children(l.on.hosts);
  const double served = mates + children;
  Terms terms = pipelined(l, heap_depth(l.on.hosts) + (mates > 0 ? 1 : 0), served + 1, served - 1);
  terms.peers = std::max(0.0, mates - 1);
  if (reduces) terms.reduced_bytes = served * l.n;
  return terms;
}

WireTerms hierarchical_tree_wire(const Load& l) {
  const double depth = heap_depth(l.on.hosts), children = heap_children(l.on.hosts);
  // Of the host after the first, which has a parent, too.
  const double inner = 1 + std::clamp<double>(l.on.hosts - 1 - kFan, 0, kFan);
  return {.hops = depth,
          .messages = depth * children * l.messages(l.n),
          .bytes = children * l.n,
          .both_bytes = std::max(children, inner) * l.n,
          .fill_bytes = (depth - 1) * children * std::min(l.n, l.slot)};
}

Amount times(uint64_t units, const Position& at, std::string_view text) {
  return {units * at.n, units == 0 ? "0" : text};
}
constexpr std::string_view kForEach = "S for each rank that it serves";

Volume hierarchical_tree_all_reduce_volume(const Position& position) {
  const base::HostMap& map = *position.hosts;
  if (map.local_rank(position.rank) > 0) return {.sent = position.everything()};
  const int host = map.host_of(position.rank);
  const Stages stages(map.hosts());
  uint64_t sends = map.ranks_on(host).size() - 1;
  if (host >= stages.members || host + stages.members < map.hosts()) ++sends;
  for (const int factor : stages.factors) {
    if (host < stages.members) sends += static_cast<uint64_t>(factor) - 1;
  }
  return {.sent = times(sends, position, kForEach)};
}

Volume hierarchical_tree_broadcast_volume(const Position& position) {
  const base::HostMap& map = *position.hosts;
  const int host = map.host_of(position.rank), top = map.host_of(position.root);
  const int leader = host == top ? position.root : map.ranks_on(host)[0];
  if (position.rank != leader) return {};
  const int v = around(host - top, map.hosts());
  const auto children = static_cast<uint64_t>(std::clamp(map.hosts() - (kFan * v + 1), 0, kFan));
  return {.sent = times(children + map.ranks_on(host).size() - 1, position, kForEach)};
}

constexpr CollectiveTraits kHierarchicalTreeCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = hierarchical_tree_all_reduce,
     .terms = hierarchical_tree_all_reduce_terms,
     .volume = hierarchical_tree_all_reduce_volume,
     .wire = hierarchical_tree_all_reduce_wire},
    {.collective = Collective::kBroadcast,
     .build = hierarchical_tree_broadcast,
     .terms = [](const Load& l) { return hierarchical_tree_terms(l, false); },
     .volume = hierarchical_tree_broadcast_volume,
     .wire = hierarchical_tree_wire},
    {.collective = Collective::kReduce,
     .build = hierarchical_tree_reduce,
     .terms = [](const Load& l) { return hierarchical_tree_terms(l, true); },
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_others(at.everything())}; },
     .wire = hierarchical_tree_wire},
    {.collective = Collective::kBarrier,
     .build = hierarchical_tree_all_reduce,
     .terms = hierarchical_tree_all_reduce_terms,
     .wire = hierarchical_tree_all_reduce_wire},
};

}  // namespace

extern constinit const AlgorithmTraits kHierarchicalTree{
    .algorithm = Algorithm::kHierarchicalTree,
    .needs = {.hosts = true},
    .folds_in_rank_order = false,
    .collectives = kHierarchicalTreeCollectives};

}  // namespace rondo::algorithms
