// What cutting parameters into shards (ZeRO-1) changes in what a run plans and tells. The cutting
// itself is rondo/ddp.hpp's, the updating weights.hpp's.
#pragma once

#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"

namespace rondo::trainer {

/// Its gradients are reduce-scattered.
bool is_cut(const DistributedDataParallel& ddp, const DdpBucket& bucket);

/// How each bucket's gradients travel: by "all-reduce" or by "reduce-scatter".
std::vector<std::string> collectives_of(const DistributedDataParallel& ddp);

/// Of `count` gradients, before the update.
Plan plan_reduction(const Communicator& communicator, size_t count, bool is_cut, DataType wire,
                    bool direct);

/// Of what all ranks own of `count` parameters, after the update.
Plan plan_gather(const Communicator& communicator, size_t count, DataType type, bool direct);

/// What is planned for each bucket: its all-reduce; or its reduce-scatter, by that algorithm, with
/// the gather of its parameters in the same prediction.
std::vector<Plan> plan_buckets(const Communicator& communicator, DistributedDataParallel& ddp,
                               DataType wire);

/// Of the flat storage.
size_t own_elements(const DistributedDataParallel& ddp);

/// What examine_gradients() sends round, of all ranks together, for a norm.
size_t norm_blocks(const DistributedDataParallel& ddp);

}  // namespace rondo::trainer
