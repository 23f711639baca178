// A plan that explains itself: what would be done for one operation, why, what it moves, and
// whether it is right. Nothing is carried out, and no communicator exists; no more than the
// built-in or the given link profile is known about a machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/schedule/verifier.hpp"
#include "comm/tuner/choose.hpp"

namespace rondo::plan {

struct Request {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kAuto;  // kAuto: by prediction
  int ranks = 0;
  int root = 0;
  std::optional<int> rank;  // only this one's schedule, and then nothing is verified
  uint64_t size_bytes = 0;  // of a rank's larger buffer, as rondo-perf counts
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  tuner::Available available;
  tuner::LinkProfile links;
};

/// What one rank moves, in bytes, and what the formula says. The formula is about chunks of one
/// length, and where they differ only an estimate.
struct RankBytes {
  int rank;
  uint64_t sent, fetched;
  double formula_sent, formula_fetched;
  std::string sent_text, fetched_text;
};

struct Verification {
  Status verdict;
  schedule::VerifyReport report;
};

struct Plan {
  Request request;
  uint64_t count;  // the collective's own argument
  Algorithm algorithm;
  std::vector<tuner::Candidate> candidates;   // cheapest first
  std::string why;                            // this algorithm
  std::vector<schedule::Schedule> schedules;  // all ranks', or that of the rank asked for
  std::vector<schedule::Program> programs;    // likewise
  bool equal_chunks;
  std::vector<RankBytes> bytes;  // likewise; empty for a barrier, and for one rank
  std::optional<Verification> verification;
  std::string not_verified;  // why there is none

  double predicted_us() const;
  bool bytes_match() const;
  /// Whether everything that could be checked is as it should be.
  bool right() const { return bytes_match() && (!verification || verification->verdict.ok()); }
};

/// Errors: kInvalidArgument, kUnavailable; they name the value and what to choose instead. A plan
/// that turns out to be wrong is no error: see Plan::right().
Result<Plan> make_plan(const Request& request);

/// "In", "slot to 2", "In of 3", ...
std::string operand_text(const schedule::Operand& operand, bool destination);

void print(std::FILE* out, const Plan& plan);
/// As text: one document.
std::string to_json_text(const Plan& plan);

}  // namespace rondo::plan
