// rondo as a Backend.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/backends/cuda_memory.hpp"
#include "bench/harness/backend.hpp"
#include "rondo/communicator.hpp"

namespace rondo::bench {

/// `direct`: all ranks map every rank's buffers, as with library memory and threads; affects
/// predictions only.
struct RondoOptions {
  Config config;
  Algorithm algorithm = Algorithm::kAuto;  // to measure
  bool library_memory = false;
  bool direct = false;
  bool cuda = false;  // buffers are on the device for `local_rank`
  int local_rank = 0;
  std::string variables =
      {};            // "RONDO_ALGORITHM=ring": what decides besides the links; for links()
  size_t graph = 0;  // times replays of graphs of this many operations; 0: times launches
  /// For memory(): the ranks of this process, and the process's memory before any of them was
  /// created.
  int ranks_in_process = 1;
  size_t private_bytes_before = 0;
};

/// Whether this algorithm may overwrite its input: what the traits in comm/algorithms say.
constexpr bool is_safe_in_place(Collective collective, Algorithm algorithm) {
  return !(collective == Collective::kAllReduce && algorithm == Algorithm::kOneShotDirect) &&
         !(collective == Collective::kAllToAll &&
           (algorithm == Algorithm::kTwoShotDirect || algorithm == Algorithm::kHierarchical ||
            algorithm == Algorithm::kCopyEngine));
}

/// Functions that only rondo has.
class RondoBackend : public Backend {
 public:
  /// Sets the algorithm to measure (kAuto: rondo's choice), and whether predictions assume buffers
  /// that all ranks map.
  virtual void select(Algorithm algorithm, bool direct) = 0;
  /// The plan of this shape with the selected algorithm; nullopt if it is not possible here.
  virtual std::optional<Plan> planned(const CallShape& shape) const = 0;
  /// Communicator::hosts().
  virtual std::vector<int> hosts() const = 0;
};

/// Blocks until all ranks have come.
Result<std::unique_ptr<RondoBackend>> make_rondo_backend(const RondoOptions& options);

}  // namespace rondo::bench
