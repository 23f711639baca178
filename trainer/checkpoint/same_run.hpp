// Whether a run can go on from a checkpoint, by options and data, and with the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/checkpoint/checkpoint.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"

namespace rondo::trainer {

/// kDataError names the options that differ, or the data. Warns of options that may differ and do.
Status require_same_run(const TrainOptions& options, const Dataset::Facts& data,
                        const LoadedCheckpoint& loaded);

/// What decides the last bits of sums over ranks: the pieces and the algorithm of each bucket.
std::vector<CheckpointBucket> buckets_of(const DistributedDataParallel& ddp,
                                         const std::vector<Plan>& plans);

/// Warns if what follows will differ in its last bits from a run without interruption.
void warn_of_other_bits(const TrainOptions& options, uint64_t ranks,
                        const std::vector<CheckpointBucket>& buckets,
                        const CheckpointState& checkpoint);

}  // namespace rondo::trainer
