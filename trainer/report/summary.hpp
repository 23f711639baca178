// A run in words and numbers: what it is before the first step, and what it was after the last.
// Computes nothing that the loop needs.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/report/report.hpp"

namespace rondo::trainer {

/// Known before the first step. Borrows.
struct RunFacts {
  const TrainOptions& options;
  const Dataset::Facts& data;
  const DistributedDataParallel& ddp;
  const std::vector<Plan>& plans;  // of each bucket
  uint64_t ranks;
  uint64_t cores;  // that they together may run on
  uint64_t steps_per_epoch, last_step, global_batch;
  uint64_t first_step;  // made before a resumed run began
  bool interrupted;     // it ended before last_step, because it was to stop
  const std::vector<Death>& deaths;
  /// Of --bucket-cap-mb auto; 0: none yet.
  uint64_t relaid_after_step() const {
    const uint64_t steps = ddp.relayout().after_steps;
    return steps == 0 ? 0 : first_step + steps - options.control_rounds();
  }
  struct Sizes {
    size_t optimizer_bytes;      // of the whole state
    size_t own_optimizer_bytes;  // of what this rank keeps of it
    size_t activation_bytes;
    double gemm_operations;  // of one sample
    size_t readers;          // threads that read ahead
  } sizes;

  bool shares_cores() const {
    return ranks * static_cast<uint64_t>(options.compute_threads) > cores;
  }
  size_t bytes_of(size_t elements) const { return elements * size_of(options.type()); }
};

/// Logs them.
void announce(const RunFacts& facts);

/// The command line's values with what was found out since, for the JSON document.
nlohmann::ordered_json config_of(const RunFacts& facts);

/// Measured beside the formula and the prediction. `bytes_sent`: per step, of each rank. Times are
/// medians over the steps of rank 0.
nlohmann::ordered_json summarize(const RunFacts& facts, const Report& report,
                                 const std::vector<uint64_t>& bytes_sent, uint64_t parameter_hash);

}  // namespace rondo::trainer
