// A plan that explains itself: how one operation would be done, why, what it moves, and whether
// that is correct. It executes nothing and has no communicator; of a machine it knows only the
// built-in or the given link profile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/plan/picture.hpp"
#include "comm/schedule/verifier.hpp"
#include "comm/tuner/choose.hpp"

namespace rondo::plan {

struct PlanRequest {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kAuto;  // kAuto: by prediction
  int ranks = 0;
  schedule::SharedHosts hosts;  // of the ranks; null: all are on one
  int root = 0;
  std::optional<int> cores;  // that the ranks share, as `links` has it; none: one for each rank
  std::optional<transport::cuda_ipc::Reach> reach;  // of ranks on GPUs; none: they are on CPUs
  std::optional<int> rank;  // only this rank's schedule; then nothing is verified
  uint64_t size_bytes = 0;  // of a rank's larger buffer, as rondo-perf counts
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  tuner::Available available;
  tuner::LinkProfile links;
};

/// Bytes that one rank moves, and those of the formula, which assumes chunks of one length and is
/// otherwise an estimate.
struct RankBytes {
  int rank;
  uint64_t sent, fetched;
  double formula_sent, formula_fetched;
  std::string sent_text, fetched_text;
};

/// Bytes that one host sends to others and receives from them.
struct HostBytes {
  int host, ranks;
  uint64_t sent, received;
};

/// What crosses the wire. The formula is for the busiest host and direction.
struct WireBytes {
  std::vector<HostBytes> hosts;  // empty where not all ranks' programs were made
  double formula = 0;
  std::string text;  // empty: the number only

  uint64_t busiest() const;
};

struct Verification {
  Status verdict;
  schedule::VerifyReport report;
};

struct ExplainedPlan {
  PlanRequest request;
  uint64_t count;  // the collective's own argument
  Algorithm algorithm;
  std::vector<tuner::Candidate> candidates;   // cheapest first
  std::string why;                            // why this algorithm was chosen
  std::optional<double> library_memory_us;    // predicted with rondo::alloc, where this is without
  std::vector<schedule::Schedule> schedules;  // all ranks', or the requested rank's
  std::vector<schedule::Program> programs;    // likewise
  bool equal_chunks;
  std::vector<RankBytes> bytes;   // likewise; empty for a barrier, and for one rank
  std::optional<WireBytes> wire;  // between hosts, but of a barrier
  std::optional<Verification> verification;
  std::string not_verified;  // why there is no proof

  double predicted_us() const;
  bool bytes_match() const;
  /// Whether everything that was checked is correct.
  bool right() const { return bytes_match() && (!verification || verification->verdict.ok()); }
};

/// Errors: kInvalidArgument, kUnavailable; the message names the value and the alternatives. A plan
/// that proves wrong is not an error: see ExplainedPlan::right().
Result<ExplainedPlan> make_plan(const PlanRequest& request);

/// "4 ranks", "16 ranks on 2 hosts of 8", "6 ranks on 3 hosts (1, 3, 2)".
std::string ranks_text(const PlanRequest& request);

/// "In", "slot to 2", "In of 3", ...
std::string operand_text(const schedule::Operand& operand, bool destination);

void print(std::FILE* out, const ExplainedPlan& plan);
/// One document, as text.
std::string to_json_text(const ExplainedPlan& plan);
/// `picture`: of all the plan's schedules. `hop`: if only that one is drawn, else 0.
Caption caption_of(const ExplainedPlan& plan, const Picture& picture, int hop);

}  // namespace rondo::plan
