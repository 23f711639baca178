// The samples of one rank, epoch after epoch: the sampler chooses them, the loader reads ahead, and
// a step's header describes them before they are read.
#pragma once

#include <memory>
#include <span>

#include "rondo/ddp.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/data/loader.hpp"

namespace rondo::trainer {

/// One thread.
class RankSamples {
 public:
  /// Those of `rank` among `ranks`, all samples where the path of the data holds {rank}. `workers`
  /// threads read ahead. Borrows options and data.
  static Result<RankSamples> create(const TrainOptions& options, const Dataset& data,
                                    uint64_t ranks, uint64_t rank, size_t workers);

  /// At the beginning, or where a checkpoint was made.
  void start(const DataPosition& position);
  void begin_epoch(uint64_t epoch);
  uint64_t epoch() const { return epoch_; }
  /// For a checkpoint: after the last step that mark_done() ended.
  DataPosition position() const { return loader_->position(); }
  void mark_done() { loader_->mark_done(); }

  /// Micro-batches of a whole epoch, and of what is left of this one.
  uint64_t batches_per_epoch() const;
  uint64_t batches_left() const { return loader_->batches_left(); }
  /// Micro-batches of the next step. Ranks whose numbers of batches may differ (--join), and models
  /// whose layers exchange something, make equally many passes: so the exchanges keep their order.
  uint64_t micro_batches() const;
  /// What the other ranks learn of the next step's samples. `terms`: loss terms of a sample.
  DdpHeader header(size_t terms) const;
  /// The next micro-batch, perhaps an empty one. Borrowed until the next call.
  Result<Batch> next();
  std::span<const int32_t> tokens_of(const Batch& batch) const {
    return {batch.tokens, batch.size * data_.shape().context};
  }

  /// At the beginning of what is left of the epoch.
  const DistributedSampler& sampler() const { return sampler_; }
  size_t workers() const { return loader_->workers(); }

 private:
  RankSamples(const TrainOptions& options, const Dataset& data, const DistributedSampler& sampler,
              std::unique_ptr<Loader> loader);

  const TrainOptions& options_;
  const Dataset& data_;
  DistributedSampler sampler_;
  std::unique_ptr<Loader> loader_;
  // Fewer samples than ranks: padding gives some ranks the same one, which is no mistake.
  bool repeats_ = false;
  uint64_t epoch_ = 0;
  uint64_t taken_ = 0;  // of the samples that sampler_ has left
};

}  // namespace rondo::trainer
