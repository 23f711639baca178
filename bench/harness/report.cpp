// Printing only; measure.cpp computes the numbers.
#include "bench/harness/report.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/harness/size.hpp"

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

int root_of(const CallShape& shape) {
  return internal::is_rooted(shape.collective) ? shape.root : -1;
}

// Widths of the columns: nccl-tests' in 100 characters, of which the first is a # in the heading.
// Only from 10 GB on a row is wider.
constexpr const char* kCallHeading = "#%9s %10s %8s %6s %4s";
constexpr const char* kCallRow = "%10zu %10zu %8s %6s %4d";
constexpr const char* kHalf = " %7s %6s %6s %6s";
constexpr const char* kWide = "  %15s %9s %9s %6s %6s";

template <class... Columns>
std::string formatted(const char* format, Columns... columns) {
  char text[256];
  std::snprintf(text, sizeof(text), format, columns...);
  return text;
}

/// In red on a terminal.
std::string alarming(const std::string& text, const TableStyle& style) {
  return style.color ? "\033[31m" + text + "\033[0m" : text;
}

std::string half_text(const Row& row, const std::optional<HalfRow>& half, const TableStyle& style) {
  if (!half) return formatted(kHalf, "-", "-", "-", "-");
  const std::string wrong = half->wrong ? std::to_string(*half->wrong) : "N/A";
  const std::string text =
      formatted(kHalf, fit(half->time_us, 7).c_str(),
                fit(alg_bandwidth(row.shape, row.ranks, half->time_us), 6).c_str(),
                fit(bus_bandwidth(row, *half), 6).c_str(), wrong.c_str());
  if (half->wrong.value_or(0) == 0) return text;
  const size_t cell = text.size() - wrong.size();
  return text.substr(0, cell) + alarming(text.substr(cell), style);
}

std::string efficiency(const Row& row, const std::optional<HalfRow>& half) {
  if (!row.measured.limit_us || !half || half->time_us <= 0) return "-";
  return fit(*row.measured.limit_us / half->time_us, 6);
}

constexpr const char* kCsvHeading =
    "size,count,type,redop,root,out_of_place_time,out_of_place_alg_bw,out_of_place_bus_bw,"
    "out_of_place_nwrong,in_place_time,in_place_alg_bw,in_place_bus_bw,in_place_nwrong,algorithm,"
    "predicted_us,limit_us\n";

std::string half_csv(const Row& row, const std::optional<HalfRow>& half) {
  if (!half) return ",,,,";
  return formatted(",%.6g,%.6g,%.6g,", half->time_us,
                   alg_bandwidth(row.shape, row.ranks, half->time_us), bus_bandwidth(row, *half)) +
         (half->wrong ? std::to_string(*half->wrong) : "");
}

std::string number_csv(const std::optional<double>& value) {
  return value ? formatted(",%.6g", *value) : ",";
}

/// Without quotes: no field has a comma. A field without a value is empty.
std::string row_csv(const Row& row) {
  const CallShape& shape = row.shape;
  std::string text =
      formatted("%zu,%zu,%s,%s,%d", size_bytes(shape, row.ranks), shape.count,
                std::string(name(shape.type)).c_str(), op_name(shape).c_str(), root_of(shape));
  text += half_csv(row, row.measured.out_of_place) + half_csv(row, row.measured.in_place);
  text += "," + (row.prediction ? row.prediction->algorithm : "");
  text += row.prediction ? number_csv(row.prediction->time_us) : ",";
  return text + number_csv(row.measured.limit_us) + "\n";
}

/// The largest size at which library memory is predicted to be more than this factor faster.
constexpr double kWorthReporting = 1.5;

void print_library_memory(std::FILE* out, const std::vector<Row>& rows) {
  const auto gain = [](const Row& row) {
    return row.prediction && row.prediction->library_us
               ? row.prediction->time_us / std::max(*row.prediction->library_us, 1e-9)
               : 0;
  };
  const Row* largest = nullptr;
  for (const Row& row : rows) {
    if (gain(row) <= kWorthReporting) continue;
    if (largest == nullptr ||
        size_bytes(row.shape, row.ranks) > size_bytes(largest->shape, largest->ranks))
      largest = &row;
  }
  if (largest == nullptr) return;
  std::fprintf(
      out,
      "# Library memory (rondo::alloc, --memory library) would be %.1f times as fast at %s:\n"
      "#   predicted %s us instead of %s us\n",
      gain(*largest), format_size(size_bytes(largest->shape, largest->ranks)).c_str(),
      fit(*largest->prediction->library_us, 9).c_str(),
      fit(largest->prediction->time_us, 9).c_str());
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

void print_heading(std::FILE* out, const Heading& heading, const TableStyle& style) {
  if (style.csv) {
    std::fputs(kCsvHeading, out);
    return;
  }
  std::fprintf(out, "# %s: %s on %s\n", heading.program.c_str(), heading.collective.c_str(),
               heading.backend.c_str());
  const std::string iterations =
      heading.iterations == 0 ? "as many as take 100 ms" : std::to_string(heading.iterations);
  std::fprintf(out, "# ranks: %d (%s), memory: %s, bytes: %s\n", heading.ranks,
               heading.pinning.c_str(), heading.memory.c_str(), heading.bytes_range.c_str());
  std::fprintf(out, "# iterations: %s, warm-up: %zu, check: %zu, time: %s\n", iterations.c_str(),
               heading.warmup, heading.checks, heading.time_of.c_str());
  if (const auto& use = heading.memory_use) {
    std::fprintf(out, "# communicator, per rank: %.2f MiB of shared memory, %.2f MiB of its own\n",
                 static_cast<double>(use->shared_bytes) / kMiB,
                 static_cast<double>(use->private_bytes) / kMiB);
  }
  if (!heading.links.empty()) std::fprintf(out, "# links: %s\n", heading.links.c_str());
  const auto half = [](const char* time, const char* alg, const char* bus, const char* wrong) {
    return formatted(kHalf, time, alg, bus, wrong);
  };
  const std::string names = half("time", "algbw", "busbw", "#wrong");
  const std::string units = half("(us)", "(GB/s)", "(GB/s)", "");
  std::fprintf(out, "#\n#%70s%29s\n", "out-of-place", "in-place");
  std::fputs(formatted(kCallHeading, "size", "count", "type", "redop", "root").c_str(), out);
  std::fprintf(
      out, "%s%s%s\n", names.c_str(), names.c_str(),
      style.wide ? formatted(kWide, "algorithm", "predicted", "limit", "eff", "eff").c_str() : "");
  std::fputs(formatted(kCallHeading, "(B)", "(elements)", "", "", "").c_str(), out);
  std::fprintf(out, "%s%s%s\n", units.c_str(), units.c_str(),
               style.wide ? formatted(kWide, "", "(us)", "(us)", "out", "in").c_str() : "");
}

void print_row(std::FILE* out, const Row& row, const TableStyle& style) {
  const CallShape& shape = row.shape;
  if (style.csv) {
    std::fputs(row_csv(row).c_str(), out);
    std::fflush(out);
    return;
  }
  std::fprintf(out, kCallRow, size_bytes(shape, row.ranks), shape.count,
               std::string(name(shape.type)).c_str(), op_name(shape).c_str(), root_of(shape));
  std::fprintf(out, "%s%s", half_text(row, row.measured.out_of_place, style).c_str(),
               half_text(row, row.measured.in_place, style).c_str());
  if (style.wide) {
    std::fprintf(out, kWide, row.prediction ? row.prediction->algorithm.c_str() : "-",
                 row.prediction ? fit(row.prediction->time_us, 9).c_str() : "-",
                 row.measured.limit_us ? fit(*row.measured.limit_us, 9).c_str() : "-",
                 efficiency(row, row.measured.out_of_place).c_str(),
                 efficiency(row, row.measured.in_place).c_str());
  }
  std::fputc('\n', out);
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

void print_footer(std::FILE* out, const std::vector<Row>& rows, const std::string& collective,
                  const TableStyle& style) {
  const uint64_t wrong = wrong_elements(rows);
  if (style.csv) {  // it ends with its last row
    if (wrong > 0) spdlog::error("{} elements are wrong: see the columns nwrong", wrong);
    std::fflush(out);
    return;
  }
  const std::string verdict = wrong == 0 ? "OK" : alarming("FAILED", style);
  std::fprintf(out, "# Out of bounds values : %llu %s\n", static_cast<unsigned long long>(wrong),
               verdict.c_str());
  std::fprintf(out, "# Avg bus bandwidth    : %g\n", average_bus_bandwidth(rows));
  print_library_memory(out, rows);
  std::fprintf(out, "#\n# Collective test concluded: %s\n", collective.c_str());
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
  const auto wrong = wrong_elements(rows);
  json document = {{"program", heading.program},
                   {"backend", heading.backend},
                   {"start_time", start_time},
                   {"args", args},
                   {"config",
                    {{"collective", heading.collective},
                     {"ranks", heading.ranks},
                     {"memory", heading.memory},
                     {"pinning", heading.pinning},
                     {"time_of", heading.time_of},
                     {"iterations", heading.iterations},
                     {"warmup", heading.warmup},
                     {"check", heading.checks}}},
                   {"results", results},
                   {"out_of_bounds", {{"count", wrong}, {"okay", wrong == 0}}},
                   {"average_bus_bandwidth",
                    {{"bandwidth", average_bus_bandwidth(rows)}, {"okay", "unchecked"}}},
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
