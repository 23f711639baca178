// See samples.hpp.
#include "trainer/step/samples.hpp"

#include <algorithm>
#include <utility>

#include "trainer/base/hash.hpp"
#include "trainer/base/random.hpp"
#include "trainer/lessons/sabotage.hpp"

namespace rondo::trainer {
namespace {

bool is_of_rank(const std::string& path) { return path.find("{rank}") != std::string::npos; }

}  // namespace

Result<RankSamples> RankSamples::create(const TrainOptions& options, const Dataset& data,
                                        uint64_t ranks, uint64_t rank, size_t workers) {
  const bool own_data = is_of_rank(options.data);
  const DistributedSampler sampler({.samples = data.samples(),
                                    .ranks = own_data ? 1 : ranks,
                                    .rank = own_data ? 0 : rank_that_reads(options, rank),
                                    .shuffle = shuffles(options),
                                    .seed = options.seed,
                                    .tail = options.sampler_tail == "drop"
                                                ? DistributedSampler::Tail::kDrop
                                                : DistributedSampler::Tail::kPad});
  std::unique_ptr<Loader> loader = RONDO_TRY(Loader::create(
      data, sampler, {.batch = options.batch, .workers = workers, .drop_last = options.drop_last}));
  RankSamples samples(options, data, sampler, std::move(loader));
  samples.repeats_ = !own_data && data.samples() < ranks;
  return samples;
}

RankSamples::RankSamples(const TrainOptions& options, const Dataset& data,
                         const DistributedSampler& sampler, std::unique_ptr<Loader> loader)
    : options_(options), data_(data), sampler_(sampler), loader_(std::move(loader)) {}

void RankSamples::start(const DataPosition& position) {
  epoch_ = position.epoch;
  taken_ = 0;
  sampler_.set_epoch(position.epoch, position.consumed);
  loader_->start_epoch(position);
}

void RankSamples::begin_epoch(uint64_t epoch) {
  start({.epoch = order_of_epoch(options_, epoch), .consumed = 0});
  epoch_ = epoch;
}

uint64_t RankSamples::batches_per_epoch() const {
  DistributedSampler whole = sampler_;
  whole.set_epoch(0);
  const uint64_t batch = options_.batch;
  return options_.drop_last ? whole.least() / batch : (whole.most() + batch - 1) / batch;
}

uint64_t RankSamples::micro_batches() const {
  const bool equally_many = options_.join || options_.sync_batch_norm;
  return equally_many ? options_.accum : std::clamp<uint64_t>(batches_left(), 1, options_.accum);
}

DdpHeader RankSamples::header(size_t terms) const {
  const uint64_t batches = std::min(micro_batches(), batches_left());
  const uint64_t left = sampler_.size() - std::min(taken_, sampler_.size());
  const uint64_t samples = std::min(batches * options_.batch, left);
  uint64_t hash = 0;
  const uint64_t hashed = repeats_ ? 0 : samples;
  for (uint64_t i = 0; i < hashed; ++i) hash += mix(sampler_.index(taken_ + i));
  // Each rank's own data has the same numbers.
  if (is_of_rank(options_.data)) hash = hash_bytes(&hash, 8, data_.hash());
  return {.loss_terms = samples * terms,
          .end_of_data = batches == batches_left(),
          .epoch = sampler_.epoch(),
          .sample_hash = hash};
}

Result<Batch> RankSamples::next() {
  Result<Batch> batch = loader_->next();
  if (batch.ok()) taken_ += batch->size;
  return batch;
}

}  // namespace rondo::trainer
