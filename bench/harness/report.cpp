// Printing only; measure.cpp computes the numbers.
#include "bench/harness/report.hpp"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace rondo::bench {
namespace {

using nlohmann::json;

constexpr double kMiB = 1 << 20;

/// `value` in at most `width` characters, with two decimals if they fit, as nccl-tests does.
std::string fit(double value, int width) {
  for (int decimals = 2; decimals > 0; --decimals) {
    char text[64];
    const int length = std::snprintf(text, sizeof(text), "%.*f", decimals, value);
    if (length <= width) return text;
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%.0f", value);
  return text;
}

double bus_bandwidth(const Row& row, const HalfRow& half) {
  return alg_bandwidth(row.shape, row.ranks, half.time_us) *
         bus_factor(row.shape.collective, row.ranks);
}

std::string op_name(const CallShape& shape) {
  return reduces(shape.collective) ? std::string(name(shape.op)) : "none";
}

int root_of(const CallShape& shape) { return is_rooted(shape.collective) ? shape.root : -1; }

std::string half_text(const Row& row, const std::optional<HalfRow>& half) {
  char text[96];
  if (!half) {
    std::snprintf(text, sizeof(text), "  %7s  %6s  %6s  %6s", "-", "-", "-", "-");
    return text;
  }
  const std::string wrong = half->wrong ? std::to_string(*half->wrong) : "N/A";
  std::snprintf(text, sizeof(text), "  %7s  %6s  %6s  %6s", fit(half->time_us, 7).c_str(),
                fit(alg_bandwidth(row.shape, row.ranks, half->time_us), 6).c_str(),
                fit(bus_bandwidth(row, *half), 6).c_str(), wrong.c_str());
  return text;
}

std::string efficiency(const Row& row, const std::optional<HalfRow>& half) {
  if (!row.measured.limit_us || !half || half->time_us <= 0) return "-";
  return fit(*row.measured.limit_us / half->time_us, 6);
}

json half_json(const Row& row, const std::optional<HalfRow>& half) {
  if (!half) return nullptr;
  json result = {{"time", half->time_us},
                 {"alg_bw", alg_bandwidth(row.shape, row.ranks, half->time_us)},
                 {"bus_bw", bus_bandwidth(row, *half)},
                 {"nwrong", half->wrong ? json(*half->wrong) : json(nullptr)}};
  if (const auto& spread = half->spread) {
    result.update({{"time_min", spread->min},
                   {"time_median", spread->median},
                   {"time_mean", spread->mean},
                   {"time_p95", spread->p95},
                   {"time_p99", spread->p99},
                   {"time_max", spread->max},
                   {"time_samples", spread->samples}});
  }
  return result;
}

}  // namespace

void print_heading(std::FILE* out, const Heading& heading) {
  std::fprintf(out, "# %s: %s on %s\n", heading.program.c_str(), heading.collective.c_str(),
               heading.backend.c_str());
  const std::string iterations =
      heading.iterations == 0 ? "as many as take 100 ms" : std::to_string(heading.iterations);
  std::fprintf(
      out, "# ranks: %d (%s), memory: %s, bytes: %s, iterations: %s, warm-up: %zu, check: %zu\n",
      heading.ranks, heading.pinning.c_str(), heading.memory.c_str(), heading.bytes_range.c_str(),
      iterations.c_str(), heading.warmup, heading.checks);
  if (const auto& use = heading.memory_use) {
    std::fprintf(out, "# communicator, per rank: %.2f MiB of shared memory, %.2f MiB of its own\n",
                 static_cast<double>(use->shared_bytes) / kMiB,
                 static_cast<double>(use->private_bytes) / kMiB);
  }
  if (!heading.links.empty()) std::fprintf(out, "# links: %s\n", heading.links.c_str());
  std::fprintf(out, "#\n# %88s %34s\n", "out-of-place", "in-place");
  constexpr const char* kRow =
      "#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s  %15s  %9s  %9s  %6s  "
      "%6s\n";
  std::fprintf(out, kRow, "size", "count", "type", "redop", "root", "time", "algbw", "busbw",
               "#wrong", "time", "algbw", "busbw", "#wrong", "algorithm", "predicted", "limit",
               "eff", "eff");
  std::fprintf(out, kRow, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)",
               "(GB/s)", "(GB/s)", "", "", "(us)", "(us)", "out", "in");
}

void print_row(std::FILE* out, const Row& row) {
  const CallShape& shape = row.shape;
  std::fprintf(out, "%12zu  %12zu  %8s  %6s  %6d", size_bytes(shape, row.ranks), shape.count,
               std::string(name(shape.type)).c_str(), op_name(shape).c_str(), root_of(shape));
  std::fprintf(out, "%s%s", half_text(row, row.measured.out_of_place).c_str(),
               half_text(row, row.measured.in_place).c_str());
  std::fprintf(out, "  %15s  %9s  %9s  %6s  %6s\n",
               row.prediction ? row.prediction->algorithm.c_str() : "-",
               row.prediction ? fit(row.prediction->time_us, 9).c_str() : "-",
               row.measured.limit_us ? fit(*row.measured.limit_us, 9).c_str() : "-",
               efficiency(row, row.measured.out_of_place).c_str(),
               efficiency(row, row.measured.in_place).c_str());
  std::fflush(out);
}

void print_stats(std::FILE* out, const Row& row) {
  const auto print = [&](const char* half_name, const std::optional<HalfRow>& half) {
    if (!half || !half->spread) return;
    const Spread& s = *half->spread;
    std::fprintf(
        out, "#   %-12s  %zu operations: min %s, median %s, mean %s, p95 %s, p99 %s, max %s us\n",
        half_name, s.samples, fit(s.min, 9).c_str(), fit(s.median, 9).c_str(),
        fit(s.mean, 9).c_str(), fit(s.p95, 9).c_str(), fit(s.p99, 9).c_str(),
        fit(s.max, 9).c_str());
  };
  print("out-of-place", row.measured.out_of_place);
  print("in-place", row.measured.in_place);
  std::fflush(out);
}

uint64_t wrong_elements(const std::vector<Row>& rows) {
  uint64_t wrong = 0;
  for (const Row& row : rows) {
    for (const auto* half : {&row.measured.out_of_place, &row.measured.in_place}) {
      if (*half) wrong += (*half)->wrong.value_or(0);
    }
  }
  return wrong;
}

double average_bus_bandwidth(const std::vector<Row>& rows) {
  double sum = 0;
  size_t halves = 0;
  for (const Row& row : rows) {
    for (const auto* half : {&row.measured.out_of_place, &row.measured.in_place}) {
      if (!*half) continue;
      sum += bus_bandwidth(row, **half);
      ++halves;
    }
  }
  return halves == 0 ? 0 : sum / static_cast<double>(halves);
}

void print_footer(std::FILE* out, const std::vector<Row>& rows, const std::string& collective) {
  const uint64_t wrong = wrong_elements(rows);
  std::fprintf(out, "# Out of bounds values : %llu %s\n", static_cast<unsigned long long>(wrong),
               wrong == 0 ? "OK" : "FAILED");
  std::fprintf(out, "# Avg bus bandwidth    : %g\n#\n# Collective test concluded: %s\n",
               average_bus_bandwidth(rows), collective.c_str());
  std::fflush(out);
}

json to_json(const Row& row, const std::string& backend) {
  const CallShape& shape = row.shape;
  json result = {{"size", size_bytes(shape, row.ranks)},
                 {"count", shape.count},
                 {"type", name(shape.type)},
                 {"redop", op_name(shape)},
                 {"root", root_of(shape)},
                 {"out_of_place", half_json(row, row.measured.out_of_place)},
                 {"in_place", half_json(row, row.measured.in_place)},
                 {"backend", backend},
                 {"algorithm", row.prediction ? json(row.prediction->algorithm) : json(nullptr)},
                 {"predicted_us", row.prediction ? json(row.prediction->time_us) : json(nullptr)}};
  if (row.measured.limit_us) result["limit_us"] = *row.measured.limit_us;
  return result;
}

json to_json(const Heading& heading, const std::vector<Row>& rows,
             const std::vector<std::string>& args, const std::string& start_time,
             const std::string& end_time, const std::string& error) {
  json results = json::array();
  for (const Row& row : rows) results.push_back(to_json(row, heading.backend));
  json document = {{"program", heading.program},
                   {"backend", heading.backend},
                   {"start_time", start_time},
                   {"args", args},
                   {"config",
                    {{"collective", heading.collective},
                     {"ranks", heading.ranks},
                     {"memory", heading.memory},
                     {"pinning", heading.pinning},
                     {"iterations", heading.iterations},
                     {"warmup", heading.warmup},
                     {"check", heading.checks}}},
                   {"results", results},
                   {"out_of_bounds", wrong_elements(rows)},
                   {"average_bus_bandwidth", average_bus_bandwidth(rows)},
                   {"end_time", end_time}};
  if (const auto& use = heading.memory_use) {
    document["config"]["memory_per_rank"] = {{"shared_bytes", use->shared_bytes},
                                             {"private_bytes", use->private_bytes}};
  }
  if (!error.empty()) document["error"] = error;
  return document;
}

bool is_written(std::FILE* file) {
  errno = 0;
  if (std::fflush(file) == 0 && std::ferror(file) == 0) return true;
  spdlog::error("cannot write the table: {}", errno != 0 ? std::strerror(errno) : "write error");
  return false;
}

}  // namespace rondo::bench
