// What all ranks' samples of a step are, read by one rank: the same samples in the same steps as if
// each had read its own. Sends nothing.
#pragma once

#include <memory>
#include <vector>

#include "trainer/data/loader.hpp"
#include "trainer/options.hpp"
#include "trainer/shares.hpp"

namespace rondo::trainer {

/// The sampler that this rank would have.
DistributedSampler share_of_rank(const Options& options, const Dataset& data, uint64_t ranks,
                                 uint64_t rank);

/// One thread. Borrows the dataset.
class GlobalBatch {
 public:
  static Result<GlobalBatch> create(const Options& options, const Dataset& data, uint64_t ranks,
                                    const ShareFormat& format);

  /// Of all loaders together.
  size_t workers() const;

  void start_epoch(uint64_t epoch);
  uint64_t batches_left() const { return loaders_[0]->batches_left(); }
  /// Fills every rank's block, which lie side by side; how many samples there are in all of them.
  Result<uint64_t> load(size_t terms_per_sample, std::byte* blocks);

 private:
  explicit GlobalBatch(const ShareFormat& format) : format_(format) {}

  ShareFormat format_;
  std::vector<std::unique_ptr<Loader>> loaders_;  // as many as ranks
};

}  // namespace rondo::trainer
