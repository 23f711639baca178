// A run's state to and from disk, by all its ranks: save.cpp, restore.cpp, and run_weights.cpp for
// GPT-2's files. The files are checkpoint.hpp's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/checkpoint/checkpoint_state.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/data/loader.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/schedule.hpp"
#include "trainer/optim/weights.hpp"

namespace rondo::trainer {

/// What a checkpoint tells of the run that made it, and decides whether this one has the same losses.
struct CheckpointOrigin {
  uint64_t ranks, batch, accum;
  std::vector<CheckpointBucket> buckets;
};

/// How far a run has come.
struct TrainingProgress {
  bool found = false;  // a checkpoint; else this is the beginning
  uint64_t step = 0;   // the last one that was made
  DataPosition position;
  std::vector<uint64_t> buffers;  // see rank_buffers.hpp: set them after Weights::replicate()
  std::optional<CheckpointOrigin> origin = std::nullopt;  // on rank 0, of what was found
};

/// Before the work, on rank 0: an error when what the options want to be written at the end could
/// not be, would replace another run's checkpoints, or would lie among those of a run under way. Makes
/// the folder of checkpoints, and holds it from here on: folder_lock.hpp.
Status try_outputs(const TrainOptions& options);

/// What decides the last bits of sums over ranks: the pieces and the algorithm of each bucket.
std::vector<CheckpointBucket> buckets_of(const DistributedDataParallel& ddp,
                                         const std::vector<Plan>& plans);

/// Collective: rank 0 saves into options.checkpoint_dir. `buckets`: those in which gradients travel,
/// which on a device are others than those of `weights`. The others do not wait for it: if it
/// fails, it says so to the communicator. With shards every rank writes its own: if one fails,
/// nothing has changed on the disk, and every rank returns an error.
template <class T>
Status checkpoint(const TrainOptions& options, Communicator& communicator,
                  const TrainingProgress& progress, const ScheduleOptions& schedule,
                  const Dataset::Facts& data, const std::vector<CheckpointBucket>& buckets,
                  Weights<T>& weights);

/// Collective: rank 0 loads the latest of options.checkpoint_dir, of however many ranks, with or
/// without shards; all get progress, loss scale, and what they own of the optimizer's state, and
/// rank 0 the parameters, for Weights::replicate(). Without a checkpoint: the beginning. Rank 0 warns
/// of options that differ and may. kDataError for a checkpoint of another model or of other data.
template <class T>
Result<TrainingProgress> restore(const TrainOptions& options, Communicator& communicator,
                                 const Dataset::Facts& data, Weights<T>& weights);

/// Warns if the losses of a resumed run on `ranks` ranks will differ. Rank 0 calls it once the buckets
/// are known. Another global batch (ranks x --batch x --accum) is allowed, because the position in the
/// data is counted in samples, but it changes the losses. With the same global batch only their last
/// bits can differ, if sums over ranks have another order.
void warn_of_other_losses(const TrainOptions& options, uint64_t ranks,
                          const std::vector<CheckpointBucket>& buckets,
                          const CheckpointOrigin& then);

/// Rank 0's parameters from, or to, a file of GPT-2's weights. Nothing on other ranks. Such a file
/// does not say how many heads its model has: heads of another width than GPT-2's are pointed out.
template <class T>
Status load_weights(const TrainOptions& options, const Communicator& communicator,
                    const Model<T>& model, Weights<T>& weights);
template <class T>
Status save_weights(const std::string& path, const Communicator& communicator,
                    const Model<T>& model, Weights<T>& weights);

}  // namespace rondo::trainer
