// The tree: ranks are the nodes of a binary heap with the root on top: rank root + v (modulo N) is
// node v, its children are nodes 2v+1 and 2v+2. The depth is log2(N), where a ring has N-1 hops:
// for small messages between many ranks. Large ones are pipelined by slices and rounds, and cost an
// inner node two sends and three reads of S bytes, so rings overtake it.
//
// reduce:      up: a leaf sends In, an inner node folds its own In and its children's sums and
//              sends the result, the root folds into Out.
// broadcast:   down: the root sends In to its children, the others pass on what comes.
// all_reduce:  up to rank 0, then down: 2 log2(N) hops.
//
// Fold order of node v: (own + first child's) + second child's. One rank finishes, all others copy
// its result, so that all hold the same bits.
// In place: a range of In has been read on the way up before it is written on the way down.
#include <bit>

#include "comm/algorithms/parts.hpp"

namespace rondo::algorithms {
namespace {

struct Node {
  int parent = -1;  // -1: this is the root
  std::vector<int> children;
};

Node node_of(const Schedule& s) {
  const auto rank_of = [&](int v) { return (v + s.root) % s.ranks; };
  const int v = around(s.rank - s.root, s.ranks);
  Node node;
  if (v > 0) node.parent = rank_of((v - 1) / 2);
  for (int child = 2 * v + 1; child <= 2 * v + 2 && child < s.ranks; ++child) {
    node.children.push_back(rank_of(child));
  }
  return node;
}

std::vector<Operand> own_and_children(const Node& node) {
  std::vector<Operand> sources{in(0)};
  for (const int child : node.children) sources.push_back(slot(child, 0));
  return sources;
}

std::vector<Operand> out_and_children(const Node& node) {
  std::vector<Operand> destinations{out(0)};
  for (const int child : node.children) destinations.push_back(slot(child, 0));
  return destinations;
}

void tree_all_reduce(Schedule& s) {
  const Node node = node_of(s);
  s.chunks = 1;
  if (node.parent < 0) {
    s.steps.push_back(move(0, own_and_children(node), out_and_children(node), true));
    return;
  }
  s.steps.push_back(move(0, own_and_children(node), {slot(node.parent, 0)}));
  s.steps.push_back(move(0, {slot(node.parent, 0)}, out_and_children(node)));
}

void tree_reduce(Schedule& s) {
  const Node node = node_of(s);
  s.chunks = 1;
  if (node.parent < 0) {
    s.steps.push_back(move(0, own_and_children(node), {out(0)}, true));
  } else {
    s.steps.push_back(move(0, own_and_children(node), {slot(node.parent, 0)}));
  }
}

void tree_broadcast(Schedule& s) {
  const Node node = node_of(s);
  s.chunks = 1;
  const Operand from = node.parent < 0 ? in(0) : slot(node.parent, 0);
  s.steps.push_back(move(0, {from}, out_and_children(node)));
}

/// log2(p), rounded up.
double height(double p) { return std::bit_width(static_cast<uint64_t>(p) - 1); }
/// Of an inner node.
double children(double p) { return p <= 2 ? 1 : 2; }
double neighbours(double p) { return p <= 2 ? 1 : p <= 4 ? 2 : 3; }

/// broadcast, and reduce but for what it folds.
Terms tree_terms(const Load& l) {
  return pipelined(l, height(l.p), neighbours(l.p), l.p <= 2 ? 1 : 4 - neighbours(l.p));
}

/// broadcast and reduce.
WireTerms tree_wire(const Load& l) {
  return {.hops = l.on.heap_depth,
          .messages = children(l.p) * l.messages(l.n),
          .bytes = l.on.heap_share * l.n,
          .both_bytes = l.on.heap_links * l.n,
          .fill_bytes = (l.on.heap_depth - 1) * std::min(l.n, l.slot)};
}

constexpr CollectiveTraits kTreeCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = tree_all_reduce,
     .terms = [](const Load& l) -> Terms {
       return {.hops = 2 * height(l.p),
               .slot_bytes = 2 * neighbours(l.p) * l.n,
               .memory_bytes = 2 * l.n,
               .reduced_bytes = children(l.p) * l.n};
     },
     .volume = [](const Position& at) -> Volume { return {.sent = at.to_family()}; },
     .wire = [](const Load& l) -> WireTerms {
       return {.hops = 2 * l.on.heap_depth,
               .messages = neighbours(l.p) * l.messages(l.n),
               .bytes = l.on.heap_links * l.n,
               .both_bytes = 2 * l.on.heap_links * l.n};
     }},
    {.collective = Collective::kReduce,
     .build = tree_reduce,
     .terms =
         [](const Load& l) {
           Terms terms = tree_terms(l);
           terms.reduced_bytes = children(l.p) * l.n;
           return terms;
         },
     .volume = [](const Position& at) -> Volume { return {.sent = at.of_others(at.everything())}; },
     .wire = tree_wire},
    {.collective = Collective::kBroadcast,
     .build = tree_broadcast,
     .terms = tree_terms,
     .volume = [](const Position& at) -> Volume { return {.sent = at.to_children()}; },
     .wire = tree_wire},
};

}  // namespace

extern constinit const AlgorithmTraits kTree{
    .algorithm = Algorithm::kTree, .folds_in_rank_order = false, .collectives = kTreeCollectives};

}  // namespace rondo::algorithms
