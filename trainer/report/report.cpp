// See report.hpp.
#include "trainer/report/report.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "rondo/log.hpp"
#include "trainer/base/clock.hpp"
#include "trainer/report/screen.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const ValidationRecord& r) {
  return {{"step", r.step},
          {"validation_loss", r.loss},
          {"accuracy", r.accuracy},
          {"samples", r.samples}};
}

Json to_json(const StepRecord& r) {
  Json line = {{"step", r.step},
               {"epoch", r.epoch},
               {"loss", r.loss},
               {"lr", r.lr},
               {"samples_per_s", r.samples_per_s},
               {"step_ms", r.times.step_ms},
               {"compute_ms", r.times.compute_ms},
               {"comm_ms", r.times.comm_ms},
               {"exposed_comm_ms", r.times.exposed_comm_ms},
               {"other_wait_ms", r.times.other_wait_ms},
               {"data_wait_ms", r.times.data_wait_ms}};
  if (r.tokens_per_s > 0) line["tokens_per_s"] = r.tokens_per_s;
  if (r.gradient_norm > 0) line["gradient_norm"] = r.gradient_norm;
  if (r.skipped) line["skipped"] = true;
  return line;
}

/// At once, so that nothing of another stream comes in between.
void print(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

/// Whether a person reads stdout. Some launchers, as Open MPI's, give their processes terminals of their
/// own, whatever the launcher's output is: those control no session.
bool stdout_is_for_people() {
  return stdout_is_terminal() && (isatty(STDOUT_FILENO) != 1 || tcgetpgrp(STDOUT_FILENO) >= 0);
}

std::string text_of(const Json& line) {
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Status write_failure(const TrainOptions& options, const std::string& why) {
  if (Document::must_stay(options.json)) return Document::check(options.json);
  return Document::open(options.json, to_json(options), why).status();
}

Result<Report> Report::open(const TrainOptions& options, const ReportedSteps& steps,
                            const Json& config, ReportHistory history, bool aloud) {
  Report report;
  report.aloud_ = aloud;
  report.steps_planned_ = steps;
  report.log_every_ = options.log_every;
  report.on_terminal_ = stdout_is_for_people();
  report.bar_ = aloud && stderr_is_terminal() && (report.on_terminal_ || options.log_every != 1);
  report.began_ns_ = now_ns();
  if (aloud) report.document_ = RONDO_TRY(Document::open(options.json, config, kStopped));
  // A program reads the file of --json, so stdout is for people.
  report.for_people_ = report.on_terminal_ || report.document_.is_file();
  // What follows is another number of ranks': medians are of that alone, if it makes steps.
  if (!history.steps.empty() && steps.first < steps.last) report.count_from(steps.first + 1);
  for (const StepRecord& step : history.steps) {
    if (step.step > steps.first) continue;
    if (step.step > history.printed) {
      report.add(step);
      continue;
    }
    report.steps_.push_back(step);
    report.document_.add_step(to_json(step));
  }
  // One after the last of these steps is made again.
  for (const ValidationRecord& validation : history.validations) {
    if (validation.step >= steps.first) continue;
    report.validations_.push_back(validation);
    report.document_.add_validation(to_json(validation));
  }
  return report;
}

ReportHistory Report::history() const {
  const uint64_t last = steps_.empty() ? 0 : steps_.back().step;
  // Where this rank printed nothing, rank 0 did.
  return {.steps = steps_,
          .validations = validations_,
          .printed = aloud_ ? last : std::numeric_limits<uint64_t>::max()};
}

void Report::print_result(const std::string& for_people, const Json& for_programs) {
  const std::string cleared = bar_ && on_terminal_ ? kClearLine : "";
  print(stdout, (for_people_ ? cleared + for_people : text_of(for_programs)) + "\n");
}

void Report::add(const StepRecord& record) {
  steps_.push_back(record);
  if (!aloud_) return;
  const Json line = to_json(record);
  document_.add_step(line);
  const bool ends = record.step == steps_planned_.last;
  const bool logs = log_every_ != 0 && (record.step % log_every_ == 0 || ends);
  if (logs) print_result(step_line(record, steps_planned_.last), line);
  if (bar_) draw_bar(record, (logs && on_terminal_) || ends || steps_.size() == 1);
}

void Report::add_validation(const ValidationRecord& record) {
  validations_.push_back(record);
  if (!aloud_) return;
  document_.add_validation(to_json(record));
  print_result(validation_line(record), to_json(record));
}

/// Ten times a second, and when `now`.
void Report::draw_bar(const StepRecord& record, bool now) {
  constexpr int64_t kBetweenNs = 100'000'000;
  const int64_t time_ns = now_ns();
  if (!now && time_ns - drawn_ns_ < kBetweenNs) return;
  drawn_ns_ = time_ns;
  // Ends in a carriage return, so that the next one replaces it, also through rondo-run.
  print(stderr, std::string(kClearLine) + kNoWrap +
                    bar_line({.first_step = steps_planned_.first,
                              .step = record.step,
                              .last_step = steps_planned_.last,
                              .loss = record.loss,
                              .elapsed_s = static_cast<double>(time_ns - began_ns_) / 1e9}) +
                    kWrap + "\r");
}

double Report::median_of(double StepTimes::*field) const {
  std::vector<double> values;
  for (const StepRecord& step : steps_) {
    if (step.step >= counts_from_) values.push_back(step.times.*field);
  }
  return median(std::move(values));
}

double Report::median_samples_per_s() const {
  std::vector<double> values;
  for (const StepRecord& step : steps_) {
    if (step.step >= counts_from_) values.push_back(step.samples_per_s);
  }
  return median(std::move(values));
}

Status Report::finish(Json summary) {
  if (bar_) print(stderr, kClearLine);
  print_result(for_people_ ? summary_screen(summary) : "", {{"summary", summary}});
  if (std::ferror(stdout) != 0) return Status(Code::kSystem, "cannot write results to stdout");
  if (!for_people_) {
    for (const char* key : {"diagnosis", "suggestion"}) {
      if (summary.contains(key)) spdlog::info("{}: {}", key, summary[key].get<std::string>());
    }
  }
  return document_.end("summary", summary);
}

void Report::leave() const {
  if (bar_) print(stderr, kClearLine);
}

void Report::abandon(const Status& why) {
  leave();
  (void)document_.end("error", why.to_string());
}

}  // namespace rondo::trainer
