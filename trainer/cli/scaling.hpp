// rondo-train --scaling 1,2,4: the same training with different numbers of ranks, each as a run of
// its own, and what becomes of the throughput. Starts runs and reads their reports; trains nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/cli/options.hpp"

namespace rondo::trainer {

/// One run.
struct ScalingPoint {
  uint64_t ranks, batch;  // per rank
  double samples_per_s;   // of all ranks
  bool oversubscribed;    // more compute threads than cores
  nlohmann::json summary;
};

/// The numbers of ranks that are run: as asked for, ascending, each once, beginning with 1, which
/// the others are compared with.
std::vector<uint64_t> scaling_ranks(const std::vector<uint64_t>& asked);

/// kInvalidArgument where --strong's batch cannot be shared equally.
Status check_scaling(const TrainOptions& options, const std::vector<uint64_t>& ranks);

/// A run's command line: `words`, a rondo-train's, without what is about all of them, and with
/// these.
std::vector<std::string> scaling_words(const std::vector<std::string>& words,
                                       const ScalingPoint& point, const std::string& json);

/// [{ranks, batch, samples_per_s, efficiency, oversubscribed, ...}]: efficiency = samples_per_s /
/// (ranks x that of 1 rank). Where ranks share cores that ratio says how they share them, not how
/// training scales: a note says so, and efficiency_of_cores relates to as many ranks as there are
/// cores for. REQUIRES: points[0] is of one rank.
nlohmann::ordered_json scaling_rows(const std::vector<ScalingPoint>& points, uint64_t cores,
                                    uint64_t threads);

/// Runs them all; a table on stderr, and one JSON document on stdout and in --json. The first run
/// that fails ends it. `argv` is this program's.
Status run_scaling(const TrainOptions& options, char** argv);

}  // namespace rondo::trainer
