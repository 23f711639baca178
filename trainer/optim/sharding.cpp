// See sharding.hpp.
#include "trainer/optim/sharding.hpp"

#include "rondo/memory.hpp"
#include "trainer/optim/clip.hpp"

namespace rondo::trainer {
namespace {

/// The longest rank's.
size_t part_of(const Communicator& communicator, size_t count) {
  const auto ranks = static_cast<size_t>(communicator.size());
  return (count + ranks - 1) / ranks;
}

}  // namespace

bool is_cut(const DistributedDataParallel& ddp, const DdpBucket& bucket) {
  return ddp.is_sharded() && ddp.tensors()[bucket.pieces.front().tensor].adds_to < 0;
}

std::vector<std::string> collectives_of(const DistributedDataParallel& ddp) {
  std::vector<std::string> names;
  for (const DdpBucket& bucket : ddp.layout()) {
    names.emplace_back(is_cut(ddp, bucket) ? "reduce-scatter" : "all-reduce");
  }
  return names;
}

Plan plan_reduction(const Communicator& communicator, size_t count, bool is_cut, DataType wire,
                    bool direct) {
  // What hooks compress they have scaled themselves (ddp.hpp).
  const ReduceOp op = size_of(wire) < 4 ? ReduceOp::kSum : ReduceOp::kMulSum;
  const Collective collective = is_cut ? Collective::kReduceScatter : Collective::kAllReduce;
  return communicator.plan(collective, is_cut ? part_of(communicator, count) : count, wire, direct,
                           Algorithm::kAuto, op);
}

Plan plan_gather(const Communicator& communicator, size_t count, DataType type, bool direct) {
  return communicator.plan(Collective::kAllGather, part_of(communicator, count), type, direct);
}

std::vector<Plan> plan_buckets(const Communicator& communicator, DistributedDataParallel& ddp,
                               DataType wire) {
  const bool direct = is_library_memory(ddp.gradients(), 1);
  std::vector<Plan> plans;
  for (const DdpBucket& bucket : ddp.layout()) {
    const bool cut = is_cut(ddp, bucket);
    Plan plan = plan_reduction(communicator, bucket.count, cut, wire, direct);
    if (cut) {
      const Plan gather = plan_gather(communicator, bucket.count, ddp.type(), direct);
      plan.predicted_us += gather.predicted_us;
      plan.bytes_sent_per_rank += gather.bytes_sent_per_rank;
    }
    plans.push_back(plan);
  }
  return plans;
}

size_t own_elements(const DistributedDataParallel& ddp) {
  size_t count = 0;
  for (const DdpRange& range : ddp.own_ranges()) count += range.count();
  return count;
}

size_t norm_blocks(const DistributedDataParallel& ddp) {
  size_t blocks = 0;
  for (const DdpTensor& tensor : ddp.tensors()) {
    if (tensor.adds_to < 0) blocks += (tensor.count() + kNormBlock - 1) / kNormBlock;
  }
  return blocks;
}

}  // namespace rondo::trainer
