// See global_batch.hpp.
#include "trainer/global_batch.hpp"

namespace rondo::trainer {

DistributedSampler share_of_rank(const Options& options, const Dataset& data, uint64_t ranks,
                                 uint64_t rank) {
  return DistributedSampler({.samples = data.samples(),
                             .ranks = ranks,
                             .rank = rank,
                             .seed = options.seed,
                             .tail = options.sampler_tail == "drop"
                                         ? DistributedSampler::Tail::kDrop
                                         : DistributedSampler::Tail::kPad});
}

Result<GlobalBatch> GlobalBatch::create(const Options& options, const Dataset& data, uint64_t ranks,
                                        const ShareFormat& format) {
  GlobalBatch global(format);
  // Together as many threads as one rank of ddp has.
  const size_t workers = (options.workers + ranks - 1) / ranks;
  for (uint64_t r = 0; r < ranks; ++r) {
    Result<std::unique_ptr<Loader>> loader = Loader::create(
        data, share_of_rank(options, data, ranks, r),
        {.batch = options.batch, .workers = workers, .drop_last = options.drop_last});
    RONDO_RETURN_IF_ERROR(loader.status());
    global.loaders_.push_back(std::move(loader).value());
  }
  return global;
}

size_t GlobalBatch::workers() const {
  size_t workers = 0;
  for (const auto& loader : loaders_) workers += loader->workers();
  return workers;
}

void GlobalBatch::start_epoch(uint64_t epoch) {
  for (const auto& loader : loaders_) loader->start_epoch({.epoch = epoch, .consumed = 0});
}

Result<uint64_t> GlobalBatch::load(size_t terms_per_sample, std::byte* blocks) {
  uint64_t samples = 0;
  for (size_t r = 0; r < loaders_.size(); ++r) {
    const Result<Loader::Loaded> loaded = loaders_[r]->next();
    RONDO_RETURN_IF_ERROR(loaded.status());
    format_.pack(loaded.value().batch, blocks + r * format_.bytes());
    samples += loaded.value().batch.size;
  }
  for (size_t r = 0; r < loaders_.size(); ++r) {
    format_.set_all_terms(samples * terms_per_sample, blocks + r * format_.bytes());
  }
  return samples;
}

}  // namespace rondo::trainer
