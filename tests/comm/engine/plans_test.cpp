// A communicator's plans where its ranks are on several hosts.
#include "comm/plans.hpp"

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/engine/board_memory.hpp"
#include "tests/comm/schedule/builtins.hpp"

namespace rondo::comm::test {
namespace {

using schedule::test::consecutive;
using schedule::test::says;

PlanLimits limits_on(const base::HostMap& hosts, int rank) {
  return {.ranks = hosts.ranks(),
          .rank = rank,
          .channels = 1,
          .depth = 4,
          .publish_depth = 4,
          .slot_bytes = 65536,
          .publish_slot_bytes = 65536,
          .profile = tuner::shared_memory_profile(),
          .available = {.publish = true, .references = true, .signals = true, .offers = true},
          .hosts = hosts};
}

Shape all_reduce_of(uint64_t count, Algorithm algorithm = Algorithm::kAuto) {
  Shape shape{.call = board::all_reduce_call(count)};
  shape.call.algorithm = algorithm;
  return shape;
}

/// The algorithm that the plan of an operation uses.
Algorithm chosen_by(Plans& plans, const Shape& shape) {
  const auto made = plans.find(shape);
  REQUIRE(made.ok());
  return (*made)->staged.algorithm;
}

}  // namespace

TEST_CASE("plans between hosts use links only, and the schedule of those hosts") {
  const auto hosts = consecutive({4, 4});
  Plans plans(limits_on(*hosts, 5));
  const auto large = plans.find(all_reduce_of(1 << 20));
  REQUIRE(large.ok());
  CHECK((*large)->staged.algorithm == Algorithm::kHierarchical);
  CHECK((*large)->direct == nullptr);
  CHECK((*large)->sharing == engine::Sharing::kSlots);
  const auto built =
      algorithms::build(Collective::kAllReduce, Algorithm::kHierarchical, hosts, 5, 0);
  CHECK((*large)->staged.program.instructions.size() == built->steps.size());
  CHECK(chosen_by(plans, all_reduce_of(2)) == Algorithm::kHierarchicalTree);
  CHECK(plans.most_bytes_moved(all_reduce_of(1 << 20), Algorithm::kHierarchical).ok());
}

TEST_CASE("a forced algorithm that these hosts do not allow is refused with the reason") {
  const auto refused = [](const base::HostMap& hosts, Algorithm algorithm) {
    Plans plans(limits_on(hosts, 0));
    const Status status = plans.find(all_reduce_of(100, algorithm)).status();
    CHECK(status.code() == Code::kUnavailable);
    return status.message();
  };
  const auto two = consecutive({2, 2});
  CHECK_THAT(refused(*two, Algorithm::kOneShot), says("ranks on several hosts share no memory"));
  CHECK_THAT(refused(*two, Algorithm::kTwoShotDirect), says("share no memory"));
  CHECK_THAT(refused(base::HostMap::one_host(4), Algorithm::kHierarchical),
             says("all ranks are on one host"));
  // A map that is left empty is one host; and a communicator's algorithm, unlike a call's, is only a
  // wish.
  PlanLimits limits = limits_on(base::HostMap::one_host(4), 0);
  limits.hosts = {};
  limits.algorithm = Algorithm::kHierarchical;
  Plans plans(limits);
  CHECK(plans.limits().hosts == base::HostMap::one_host(4));
  CHECK(chosen_by(plans, all_reduce_of(100)) != Algorithm::kHierarchical);
}

TEST_CASE("a reproducible communicator between hosts folds in rank order") {
  for (const auto& hosts : {consecutive({4, 4}), consecutive({1, 7})}) {
    PlanLimits limits = limits_on(*hosts, 0);
    limits.available.rank_order_only = true;
    Plans plans(limits);
    for (const uint64_t count : {1, 1000, 1 << 20}) {
      const Algorithm chosen = chosen_by(plans, all_reduce_of(count));
      CHECK(algorithms::folds_in_rank_order(Collective::kAllReduce, chosen, DataType::kFloat32));
    }
    CHECK(plans.find(all_reduce_of(8, Algorithm::kHierarchical)).status().code() ==
          Code::kUnavailable);
  }
}

TEST_CASE("averages of integers go in rank order, between hosts, too, unless they may wrap") {
  const auto hosts = consecutive({4, 4});
  for (const bool wraps : {false, true}) {
    PlanLimits limits = limits_on(*hosts, 0);
    limits.wrapping_averages = wraps;
    limits.algorithm = Algorithm::kHierarchical;
    Plans plans(limits);
    for (const DataType type : {DataType::kInt8, DataType::kUint64, DataType::kFloat32}) {
      for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kSum}) {
        const bool exact = op == ReduceOp::kAvg && !is_floating(type) && !wraps;
        Shape shape = all_reduce_of(1 << 20);
        shape.call.type = type;
        shape.call.op = op;
        const Algorithm chosen = chosen_by(plans, shape);
        INFO(name(type) << " " << name(op) << " by " << name(chosen));
        CHECK((chosen == Algorithm::kHierarchical) != exact);
        if (exact) CHECK(algorithms::folds_in_rank_order(Collective::kAllReduce, chosen, type));
        shape.call.algorithm = Algorithm::kHierarchical;
        CHECK(plans.find(shape).ok() != exact);
      }
    }
  }
}

}  // namespace rondo::comm::test
