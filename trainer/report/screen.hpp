// What rank 0 shows on a terminal: a line for a step, a progress bar, one screen of summary. Makes
// text of at most 79 columns, paths and warnings apart; prints nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/report/report.hpp"

namespace rondo::trainer {

/// Clears the line of a terminal, on which the bar may be, for what comes next.
inline constexpr char kClearLine[] = "\r\033[K";

/// Around a bar, which a narrow terminal then cuts off instead of wrapping it (DEC's mode 7).
inline constexpr char kNoWrap[] = "\033[?7l", kWrap[] = "\033[?7h";

/// `last_step`: of the run. The rate is in tokens where there are any, else in samples.
std::string step_line(const StepRecord& record, uint64_t last_step);
std::string validation_line(const ValidationRecord& record);

/// Where a run stands.
struct BarState {
  uint64_t first_step, step, last_step;  // made before this run began; made; of the run
  double loss;
  double elapsed_s;  // since this run began
};
/// The rate is the mean over the run. Nothing is left at the last step.
std::string bar_line(const BarState& state);

/// 7 -> "7 s", 231 -> "3:51", 7384 -> "2:03:04".
std::string duration_in_words(double seconds);

/// The summary without its details, for which --json is: times, a table of at most 8 buckets, the
/// diagnosis, warnings.
std::string summary_screen(const nlohmann::ordered_json& summary);

}  // namespace rondo::trainer
