// Out of place, for float sum or each of -d, -o and -r, a table each. One-shot-direct all_reduce is
// shown but not a candidate: it is not safe in place, and ranks must choose alike whatever their
// buffers are.
#include "bench/perf/sweep.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "bench/harness/json_file.hpp"
#include "bench/harness/run.hpp"
#include "bench/perf/interleaved.hpp"

namespace rondo::bench {
namespace {

constexpr size_t kRoundsOfSweep = 21;
constexpr double kBatchUsOfSweep = 1000;
constexpr size_t kPromisedFrom = size_t{64} << 10;

struct Timed {
  Algorithm algorithm;
  bool choosable;
  double time_us, predicted_us;
  std::vector<double> times;
};

/// One size. A table has one type, operator and root.
struct Line {
  CallShape shape;
  size_t bytes;
  std::vector<Timed> results;
  size_t chosen = 0, best = 0;  // of results
  double loss = 0;              // median over rounds of chosen / best - 1
  double prediction_error = 0;  // of the chosen
};

/// What is not safe in place is given up where another direct algorithm is; and rondo never chooses
/// the copy engine by itself.
bool is_choosable(const CallShape& shape, Algorithm algorithm,
                  const std::vector<Contender>& contenders) {
  if (algorithm == Algorithm::kCopyEngine) return false;
  const auto is_better = [&](const Contender& c) {
    const bool direct =
        c.algorithm == Algorithm::kOneShotDirect || c.algorithm == Algorithm::kTwoShotDirect;
    return direct && is_safe_in_place(shape.collective, c.algorithm);
  };
  return is_safe_in_place(shape.collective, algorithm) ||
         std::none_of(contenders.begin(), contenders.end(), is_better);
}

/// The best is what the chosen one loses most against, round by round; itself, if against none.
void judge(Line& line, Algorithm chosen) {
  const auto begin = line.results.begin(), end = line.results.end();
  line.chosen = static_cast<size_t>(
      std::find_if(begin, end, [&](const Timed& t) { return t.algorithm == chosen; }) - begin);
  const Timed& taken = line.results.at(line.chosen);
  line.best = line.chosen;
  line.loss = 0;
  for (size_t other = 0; other < line.results.size(); ++other) {
    if (!line.results[other].choosable) continue;
    std::vector<double> losses;
    for (size_t i = 0; i < taken.times.size(); ++i) {
      losses.push_back(taken.times[i] / line.results[other].times[i] - 1);
    }
    if (const double loss = median(losses); loss > line.loss) {
      line.best = other;
      line.loss = loss;
    }
  }
  line.prediction_error = taken.predicted_us / taken.time_us - 1;
}

std::string name_at(const Line& line, size_t result) {
  return std::string(name(line.results[result].algorithm));
}

rondo::Result<Line> measure_line(const PerfOptions& options, RondoBackend& backend,
                                 const BothMemories& memory, const CallShape& shape) {
  const bool library = options.library_memory;
  std::vector<Contender> contenders;
  for (const Algorithm algorithm : algorithms_for(backend, shape, library)) {
    contenders.push_back(
        {.shape = shape, .algorithm = algorithm, .library = library, .block = 0, .times = {}});
  }
  const Rounds how{.rounds = options.iterations > 0 ? options.iterations : kRoundsOfSweep,
                   .batch_us = kBatchUsOfSweep,
                   .progress = ""};
  RONDO_TRY(time_interleaved(backend, memory, how, contenders));
  settle(contenders);
  Line line{.shape = shape, .bytes = size_bytes(shape, backend.size()), .results = {}};
  for (Contender& c : contenders) {
    backend.select(c.algorithm, library);
    line.results.push_back({.algorithm = c.algorithm,
                            .choosable = is_choosable(shape, c.algorithm, contenders),
                            .time_us = c.time_us,
                            .predicted_us = backend.planned(shape)->predicted_us,
                            .times = std::move(c.times)});
  }
  backend.select(Algorithm::kAuto, library);
  judge(line, backend.planned(shape)->algorithm);
  return line;
}

bool in_one_table(const CallShape& a, const CallShape& b) {
  return a.type == b.type && a.op == b.op && a.root == b.root;
}

/// "all_reduce of float, sum".
std::string title_of(const CallShape& shape) {
  std::string title(name(shape.collective));
  if (shape.collective == Collective::kBarrier) return title;
  title.append(" of ").append(name(shape.type));
  if (reduces(shape.collective)) title.append(", ").append(name(shape.op));
  if (internal::is_rooted(shape.collective))
    title.append(", root ").append(std::to_string(shape.root));
  return title;
}

void print_heading(const PerfOptions& options, const RondoBackend& backend,
                   const std::string& pinning, const Line& line) {
  std::printf("# rondo-perf --sweep: %s, %d ranks (%s), %s memory, links: %s\n",
              title_of(line.shape).c_str(), backend.size(), pinning.c_str(),
              options.library_memory ? "library" : "plain", backend.links().c_str());
  std::printf(
      "# us measured, undisturbed / us predicted; (in brackets: not an alternative, not safe "
      "in place)\n");
  std::printf("#%11s", "size");
  for (const Timed& r : line.results) std::printf("  %19s", std::string(name(r.algorithm)).c_str());
  std::printf("  %15s  %15s  %7s\n", "chosen", "best", "loss");
}

void print_line(const Line& line) {
  std::printf("%12zu", line.bytes);
  for (const Timed& r : line.results) {
    char text[64];
    std::snprintf(text, sizeof(text), r.choosable ? "%.2f / %.2f" : "(%.2f / %.2f)", r.time_us,
                  r.predicted_us);
    std::printf("  %19s", text);
  }
  std::printf("  %15s  %15s  %5.1f %%\n", name_at(line, line.chosen).c_str(),
              name_at(line, line.best).c_str(), 100 * line.loss);
  std::fflush(stdout);
}

/// Of one table.
void print_footer(std::span<const Line> lines) {
  const Line* worst = &lines[0];
  size_t within_5 = 0, predicted = 0, within_15 = 0;
  double worst_error = 0;
  for (const Line& line : lines) {
    if (line.loss > worst->loss) worst = &line;
    within_5 += line.loss <= 0.05;
    if (line.bytes < kPromisedFrom) continue;
    ++predicted;
    within_15 += std::abs(line.prediction_error) <= 0.15;
    if (std::abs(line.prediction_error) > std::abs(worst_error))
      worst_error = line.prediction_error;
  }
  std::printf("# chosen within 5 %% of the best: %zu of %zu sizes; worst %.1f %% at %zu bytes\n",
              within_5, lines.size(), 100 * worst->loss, worst->bytes);
  if (predicted == 0) return;
  std::printf("# chosen predicted within 15 %% from 64K up: %zu of %zu sizes; worst %+.1f %%\n",
              within_15, predicted, 100 * worst_error);
}

nlohmann::json to_json(const Line& line) {
  nlohmann::json algorithms = nlohmann::json::array();
  for (const Timed& r : line.results) {
    algorithms.push_back({{"algorithm", name(r.algorithm)},
                          {"time", r.time_us},
                          {"predicted_us", r.predicted_us},
                          {"choosable", r.choosable}});
  }
  return {{"size", line.bytes},
          {"count", line.shape.count},
          {"type", name(line.shape.type)},
          {"redop", reduces(line.shape.collective) ? name(line.shape.op) : "none"},
          {"root", internal::is_rooted(line.shape.collective) ? line.shape.root : -1},
          {"algorithms", algorithms},
          {"chosen", name_at(line, line.chosen)},
          {"best", name_at(line, line.best)},
          {"loss", line.loss}};
}

Status write_json(const PerfOptions& options, const RondoBackend& backend,
                  const std::vector<Line>& lines) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Line& line : lines) rows.push_back(to_json(line));
  std::ofstream file(options.json_file, std::ios::trunc);
  file << nlohmann::json{{"program", "rondo-perf"},
                         {"sweep", name(options.collective)},
                         {"ranks", backend.size()},
                         {"memory", options.library_memory ? "library" : "plain"},
                         {"links", backend.links()},
                         {"results", rows}}
              .dump(1, ' ', false, nlohmann::json::error_handler_t::replace)
       << "\n";
  file.close();
  if (file) return {};
  return {Code::kSystem,
          "cannot write --json '" + options.json_file + "': " + std::strerror(errno)};
}

Status sweep_rank(const PerfOptions& options, RondoBackend& backend, const std::string& pinning) {
  const bool first = backend.rank() == 0;
  if (first) RONDO_TRY(JsonFile(options.json_file).open());
  const BothMemories memory(std::max<size_t>(options.sweep.max, 64), backend.size());
  if (!memory.ok()) {
    return no_memory_for("four", options.sweep.max, true);
  }
  std::vector<CallShape> shapes = shapes_of(options, backend.size());
  RONDO_TRY(check_support(options, backend, shapes));
  std::erase_if(shapes, [](const CallShape& shape) {
    return shape.count == 0 && shape.collective != Collective::kBarrier;
  });
  if (shapes.empty()) {
    return {Code::kInvalidArgument, "every size is below one element: choose larger ones with -e"};
  }
  std::vector<Line> lines;
  size_t table = 0;  // where it begins
  for (const CallShape& shape : shapes) {
    auto line = RONDO_TRY(measure_line(options, backend, memory, shape));
    const bool begins = lines.empty() || !in_one_table(lines.back().shape, shape);
    if (first && begins && !lines.empty()) print_footer(std::span(lines).subspan(table));
    if (begins) table = lines.size();
    if (first && begins) print_heading(options, backend, pinning, line);
    if (first) print_line(line);
    lines.push_back(std::move(line));
  }
  if (first) print_footer(std::span(lines).subspan(table));
  return first && !options.json_file.empty() ? write_json(options, backend, lines) : Status{};
}

}  // namespace

int sweep_algorithms(const PerfOptions& options, RondoBackend& backend,
                     const std::string& pinning) {
  const Status status = sweep_rank(options, backend, pinning);
  return status.ok() ? 0 : fail(backend, status);
}

}  // namespace rondo::bench
