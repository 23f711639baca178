// What rank 0 reports: a line per logged step and a summary on stdout, for people on a terminal or
// with --json FILE, in JSON otherwise; all of it as one document in --json; a progress bar if stderr
// is a terminal.
// Formats numbers; measures nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/report/document.hpp"

namespace rondo::trainer {

/// Of one step on this rank: step_ms = compute_ms + exposed_comm_ms + other_wait_ms + data_wait_ms.
struct StepTimes {
  double step_ms = 0;
  double compute_ms = 0;       // forward, backward, optimizer
  double comm_ms = 0;          // gradients (ZeRO-1: or parameters) were under way
  double exposed_comm_ms = 0;  // of comm_ms, while this rank's compute thread waited for them
  double other_wait_ms = 0;    // for headers, buffers, the loss, the map of used tensors
  double data_wait_ms = 0;     // until the samples were there
};

/// One step.
struct StepRecord {
  uint64_t step, epoch;  // from 1, from 0
  double loss;           // mean over the global batch, before the step's update
  double lr;
  double samples_per_s;     // of all ranks
  double tokens_per_s = 0;  // the same in tokens; 0: the model reads none
  StepTimes times;
  double gradient_norm;  // before clipping; 0: not clipped, not computed
  bool skipped;          // gradients were not finite: no update, the loss scale shrank
};

/// The loss on other data, after a step.
struct ValidationRecord {
  uint64_t step;
  double loss, accuracy;
  uint64_t samples;
};

/// Ranks that died, with --elastic, by the numbers that they began with.
struct Death {
  std::vector<int> ranks;
  uint64_t after_step;  // the last one that counts; the others have made the next one again
  int left;             // ranks
};

/// What was reported of a run before some of its ranks died.
struct ReportHistory {
  std::vector<StepRecord> steps;
  std::vector<ValidationRecord> validations;
  uint64_t printed = 0;  // the last step whose line is on stdout
};

/// The middle value, or the mean of the two in the middle; 0 for none.
double median(std::vector<double> values);

/// The error of a document whose run could not end it.
inline constexpr char kStopped[] = "stopped from outside before it had ended";

/// Writes options.json: the document of a run that had, or has yet, no Report, with `why` for its
/// "error". Nothing without a path, or where it would replace more than such a document: then not ok
/// only if it could not be written.
Status write_failure(const TrainOptions& options, const std::string& why);

/// The steps of a run: `first` were made before it began; it ends with `last`, if nothing stops it.
struct ReportedSteps {
  uint64_t first = 0, last = 0;
};

/// One thread.
class Report {
 public:
  /// Begins the document, with what `history` holds up to steps.first. One that is not `aloud` only
  /// keeps records: other ranks than 0 have it, with --elastic.
  static Result<Report> open(const TrainOptions& options, const ReportedSteps& steps,
                             const nlohmann::ordered_json& config, ReportHistory history = {},
                             bool aloud = true);

  void add(const StepRecord& record);
  void add_validation(const ValidationRecord& record);
  /// Whether the document has all of it.
  const Status& written() const { return document_.failure(); }
  /// The steps before this one no longer count in medians.
  void count_from(uint64_t step) { counts_from_ = step; }
  /// For the report that goes on, on this rank or another.
  ReportHistory history() const;
  /// Median over all added steps that count.
  double median_of(double StepTimes::*field) const;
  double median_samples_per_s() const;
  /// Null when there was no step, as after resuming after the last one.
  const StepRecord* last() const { return steps_.empty() ? nullptr : &steps_.back(); }
  /// Prints the summary, and ends the document with it.
  Status finish(nlohmann::ordered_json summary);
  /// Ends the document with why there is no more.
  void abandon(const Status& why);
  /// The others go on: what was written is theirs.
  void leave() const;

 private:
  void print_result(const std::string& for_people, const nlohmann::ordered_json& for_programs);
  void draw_bar(const StepRecord& record, bool now);

  ReportedSteps steps_planned_;
  uint64_t log_every_ = 1, counts_from_ = 0;
  bool aloud_ = true;
  bool on_terminal_ = false;  // stdout
  bool for_people_ = false;   // stdout gets lines for people, otherwise JSON
  bool bar_ = false;
  int64_t began_ns_ = 0, drawn_ns_ = 0;
  Document document_;
  std::vector<StepRecord> steps_;
  std::vector<ValidationRecord> validations_;
};

}  // namespace rondo::trainer
