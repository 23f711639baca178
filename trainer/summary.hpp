// A run in words and numbers: what it is before the first step, and what it was after the last.
// Computes nothing that the loop needs.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/buckets.hpp"
#include "trainer/corpus.hpp"
#include "trainer/model.hpp"
#include "trainer/options.hpp"
#include "trainer/report.hpp"
#include "trainer/sampler.hpp"

namespace rondo::trainer {

/// Known before the first step. Borrows.
struct RunFacts {
  const Options& options;
  const Corpus& corpus;
  const SampleOrder& order;
  const std::vector<Parameter>& parameters;
  const BucketLayout& layout;
  const std::vector<Plan>& plans;  // of each bucket's all-reduce
  uint64_t ranks, last_step;

  size_t bytes_of(const Bucket& bucket) const { return bucket.count * size_of(options.type()); }
};

/// Logs them.
void announce(const RunFacts& facts);

/// The options that shaped the run, for the JSON document.
nlohmann::ordered_json config_of(const RunFacts& facts);

/// Measured beside the formula and the prediction. `bytes_sent`: per step, of each rank. Times are
/// medians over the steps of rank 0.
nlohmann::ordered_json summarize(const RunFacts& facts, const Report& report,
                                 const std::vector<uint64_t>& bytes_sent, uint64_t parameter_hash);

}  // namespace rondo::trainer
