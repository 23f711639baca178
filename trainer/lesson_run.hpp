// rondo-train as a child of rondo-train: what a lesson does twice. Starts it the way a user would,
// by a command that is shown, and reads what it wrote; judges nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::trainer {

struct LessonRun {
  std::string command;   // for a shell
  bool succeeded;        // exit code 0
  std::string said;      // stderr
  nlohmann::json json;   // --json's document; after a failure perhaps empty
  nlohmann::json trace;  // --trace's, null without

  /// A number of the document, NaN where it is not there: "/summary/final_loss".
  double number(const std::string& pointer) const;
  double loss_of_step(uint64_t step) const;
  double mean_loss(size_t last) const;  // of that many last steps
  double validation_loss() const;       // the last one
  std::string warnings() const;         // of the summary; "none"
  std::string error() const;            // of a run that failed; "none"
  size_t steps() const;                 // made
  size_t buckets() const;               // all-reduces of gradients per step; 0 after a failure
  /// Bytes sent per step: by rank 0, and the most that any other sent.
  double bytes_of_root() const, bytes_of_others() const;
  /// From the trace: the median over steps of how long the spans with that name on that rank take
  /// together.
  double ms_per_step(int rank, const std::string& name) const;
  /// From the trace: all-reduces of buckets on rank 0, and how many of them were issued before
  /// backward had ended, which is before the wait began.
  struct Starts {
    size_t all = 0, during_backward = 0;
  };
  Starts bucket_starts() const;
};

/// Runs `rondo-train flags` with its documents in `folder`/`name`.*; "{folder}" and "{run}" in
/// flags are replaced.
/// Blocks until it ends. An error if it could not be started or left no document.
Result<LessonRun> run_for_lesson(const std::vector<std::string>& flags, const std::string& folder,
                                 const std::string& name);

}  // namespace rondo::trainer
