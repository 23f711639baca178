// Which algorithm does which collective, and what a step is called. The algorithms themselves are
// in builders/.
#include <string>

#include "comm/schedule/builders/parts.hpp"
#include "comm/schedule/schedule.hpp"

namespace rondo::schedule {
namespace {

using Builder = void (*)(Schedule&);
constexpr int kMaxRanks = 65536;

/// Null where the algorithm does not do the collective.
Builder builder(Collective collective, Algorithm algorithm) {
  struct Entry {
    Collective collective;
    Algorithm algorithm;
    Builder build;
  };
  using C = Collective;
  using A = Algorithm;
  static constexpr Entry kTable[] = {
      {C::kAllReduce, A::kRing, ring_all_reduce},
      {C::kAllReduce, A::kOneShot, one_shot_all_reduce},
      {C::kAllReduce, A::kTwoShot, two_shot_all_reduce},
      {C::kAllReduce, A::kTree, tree_all_reduce},
      {C::kAllReduce, A::kStar, star_all_reduce},
      {C::kAllReduce, A::kOneShotDirect, direct_one_shot_all_reduce},
      {C::kAllReduce, A::kTwoShotDirect, direct_two_shot_all_reduce},
      {C::kReduceScatter, A::kRing, ring_reduce_scatter},
      {C::kReduceScatter, A::kTwoShot, two_shot_reduce_scatter},
      {C::kReduceScatter, A::kTwoShotDirect, direct_two_shot_reduce_scatter},
      {C::kAllGather, A::kRing, ring_all_gather},
      {C::kAllGather, A::kOneShot, one_shot_all_gather},
      {C::kAllGather, A::kTwoShot, two_shot_all_gather},
      {C::kAllGather, A::kTwoShotDirect, direct_two_shot_all_gather},
      {C::kBroadcast, A::kRing, ring_broadcast},
      {C::kBroadcast, A::kOneShot, one_shot_broadcast},
      {C::kBroadcast, A::kTree, tree_broadcast},
      {C::kBroadcast, A::kStar, star_broadcast},
      {C::kBroadcast, A::kOneShotDirect, direct_one_shot_broadcast},
      {C::kReduce, A::kRing, ring_reduce},
      {C::kReduce, A::kTree, tree_reduce},
      {C::kReduce, A::kStar, star_reduce},
      {C::kReduce, A::kTwoShotDirect, direct_two_shot_reduce},
      {C::kGather, A::kStar, star_gather},
      {C::kGather, A::kTwoShotDirect, direct_two_shot_gather},
      {C::kScatter, A::kStar, star_scatter},
      {C::kScatter, A::kOneShotDirect, direct_one_shot_scatter},
      {C::kAllToAll, A::kTwoShot, two_shot_all_to_all},
      {C::kAllToAll, A::kTwoShotDirect, direct_two_shot_all_to_all},
      // The _v forms are the same steps: only lowering knows how long a chunk is.
      {C::kAllGatherV, A::kRing, ring_all_gather},
      {C::kAllGatherV, A::kOneShot, one_shot_all_gather},
      {C::kAllGatherV, A::kTwoShot, two_shot_all_gather},
      {C::kAllGatherV, A::kTwoShotDirect, direct_two_shot_all_gather},
      {C::kReduceScatterV, A::kRing, ring_reduce_scatter},
      {C::kReduceScatterV, A::kTwoShot, two_shot_reduce_scatter},
      {C::kReduceScatterV, A::kTwoShotDirect, direct_two_shot_reduce_scatter},
      // Not direct: a rank does not know where its peers want their blocks.
      {C::kAllToAllV, A::kTwoShot, two_shot_all_to_all},
      {C::kBarrier, A::kRing, ring_all_reduce},
      {C::kBarrier, A::kOneShot, one_shot_all_reduce},
      {C::kBarrier, A::kTwoShot, exchange_barrier},
      {C::kBarrier, A::kFlat, flat_barrier},
  };
  for (const Entry& entry : kTable) {
    if (entry.collective == collective && entry.algorithm == algorithm) return entry.build;
  }
  return nullptr;
}

bool touches(const std::vector<Operand>& operands, Place a, Place b) {
  for (const Operand& o : operands) {
    if (o.place == a || o.place == b) return true;
  }
  return false;
}

}  // namespace

bool has(Collective collective, Algorithm algorithm) {
  return builder(collective, algorithm) != nullptr;
}

Result<Schedule> build(Collective collective, Algorithm algorithm, int ranks, int rank, int root) {
  const Builder fill = builder(collective, algorithm);
  if (fill == nullptr) {
    return Status(Code::kUnavailable, std::string("no ") + std::string(name(algorithm)) +
                                          " algorithm for " + std::string(name(collective)) +
                                          "; choose another or auto");
  }
  if (ranks < 1 || ranks > kMaxRanks) {
    return Status(Code::kInvalidArgument,
                  "a schedule is for 1 to 65536 ranks, not " + std::to_string(ranks));
  }
  if (rank < 0 || rank >= ranks) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " is not below " +
                                              std::to_string(ranks) + ", the number of ranks");
  }
  // Chunks are numbered by int, and an all_to_all has one for every pair.
  constexpr int kMostInPairs = 46340;
  if (base_of(collective) == Collective::kAllToAll && ranks > kMostInPairs) {
    return Status(Code::kInvalidArgument,
                  "an all_to_all is for 1 to 46340 ranks, not " + std::to_string(ranks));
  }
  const bool rooted = is_rooted(collective);
  if (rooted && (root < 0 || root >= ranks)) {
    return Status(Code::kInvalidArgument, "root " + std::to_string(root) + " is not below " +
                                              std::to_string(ranks) + ", the number of ranks");
  }
  Schedule s{.collective = collective,
             .algorithm = algorithm,
             .ranks = ranks,
             .rank = rank,
             .root = rooted ? root : 0,
             .chunks = 1,
             .steps = {}};
  if (ranks > 1) {
    fill(s);
  } else if (collective != Collective::kBarrier) {
    s.steps.push_back(move(0, {in(0)}, {out(0)}, form_of(collective).reduces));
  }
  return s;
}

bool is_in_place_safe(Collective collective, Algorithm algorithm) {
  return collective != Collective::kAllToAllV &&
         !(collective == Collective::kAllReduce && algorithm == Algorithm::kOneShotDirect) &&
         !(collective == Collective::kAllToAll && algorithm == Algorithm::kTwoShotDirect);
}

bool folds_in_rank_order(Algorithm algorithm) {
  return algorithm != Algorithm::kRing && algorithm != Algorithm::kTree;
}

Needs needs_of(Algorithm algorithm) {
  const bool direct =
      algorithm == Algorithm::kOneShotDirect || algorithm == Algorithm::kTwoShotDirect;
  return {.publish = algorithm == Algorithm::kOneShot,
          .references = direct,
          .signals = direct || algorithm == Algorithm::kFlat};
}

const char* name_of(const Step& step) {
  if (step.action == Action::kSignal) return "signal";
  if (step.action == Action::kWait) {
    return step.flag == Flag::kPosted ? "wait_posted" : "wait_signalled";
  }
  const bool receives = touches(step.sources, Place::kSlot, Place::kPublished);
  const bool sends = touches(step.destinations, Place::kSlot, Place::kSlot);
  const bool publishes = touches(step.destinations, Place::kPublished, Place::kPublished);
  const bool pushes = touches(step.destinations, Place::kPeerOut, Place::kPeerIn);
  const bool keeps = touches(step.destinations, Place::kOut, Place::kIn);
  if (step.sources.size() > 1) {
    if (pushes) return "reduce_push";
    if (publishes) return receives ? "recv_reduce_publish" : "reduce_publish";
    if (!receives) return sends ? "reduce_send" : "reduce";
    if (!sends) return "recv_reduce_copy";
    return keeps ? "recv_reduce_copy_send" : "recv_reduce_send";
  }
  if (pushes) return "push";
  if (touches(step.sources, Place::kPeerIn, Place::kPeerOut)) return "pull";
  if (publishes) return receives ? "recv_publish" : "publish";
  if (receives) return !sends ? "recv" : keeps ? "recv_copy_send" : "recv_send";
  return !sends ? "copy" : keeps ? "copy_send" : "send";
}

}  // namespace rondo::schedule
