// See report.hpp.
#include "trainer/report/report.hpp"

#include <algorithm>
#include <cstdio>

#include "rondo/log.hpp"

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
  if (r.gradient_norm > 0) line["gradient_norm"] = r.gradient_norm;
  if (r.skipped) line["skipped"] = true;
  return line;
}

void print_line(const Json& line) {
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Status write_failure(const TrainOptions& options, const std::string& why) {
  return Document::open(options.json, to_json(options), why).status();
}

Result<Report> Report::open(const TrainOptions& options, uint64_t last_step, const Json& config) {
  Report report;
  report.last_step_ = last_step;
  report.log_every_ = options.log_every;
  report.bar_ = options.log_every != 1 && stderr_is_terminal();
  report.document_ = RONDO_TRY(Document::open(options.json, config, kStopped));
  return report;
}

void Report::add(const StepRecord& record) {
  steps_.push_back(record);
  const Json line = to_json(record);
  document_.add_step(line);
  if (bar_) draw_bar(record);
  if (log_every_ == 0) return;
  if (record.step % log_every_ == 0 || record.step == last_step_) print_line(line);
}

void Report::add_validation(const ValidationRecord& record) {
  document_.add_validation(to_json(record));
  print_line(to_json(record));
}

void Report::draw_bar(const StepRecord& record) {
  constexpr uint64_t kWidth = 40;
  // By epochs the last step is only expected where ranks have data of different sizes.
  const auto filled_at = [&](uint64_t step) {
    return std::min(kWidth, kWidth * step / std::max<uint64_t>(last_step_, 1));
  };
  const uint64_t filled = filled_at(record.step);
  const bool moved = filled != filled_at(record.step - 1) || steps_.size() == 1;
  if (!moved && record.step != last_step_) return;
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  bar_open_ = record.step < last_step_;
  // Ends in a carriage return, so that the next one replaces it, also through rondo-run.
  std::fprintf(stderr, "\033[K[%s] step %llu of %llu, loss %.4f%s", bar.c_str(),
               static_cast<unsigned long long>(record.step),
               static_cast<unsigned long long>(last_step_), record.loss, bar_open_ ? "\r" : "\n");
}

/// What comes next begins on a line of its own, also where the last step was not reached.
void Report::leave_bar() {
  if (bar_open_) std::fputs("\n", stderr);
  bar_open_ = false;
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
  leave_bar();
  print_line({{"summary", summary}});
  if (std::ferror(stdout) != 0) return Status(Code::kSystem, "cannot write results to stdout");
  return document_.end("summary", summary);
}

void Report::abandon(const Status& why) {
  leave_bar();
  (void)document_.end("error", why.to_string());
}

}  // namespace rondo::trainer
