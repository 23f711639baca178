// The output of a measurement: nccl-tests' table and footer in 100 characters a line, or with
// rondo's columns after nccl-tests' own so that parsers of these keep working; the same as CSV and
// as JSON.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/measure.hpp"

namespace rondo::bench {

struct Row {
  CallShape shape;
  int ranks;
  Measured measured;
  std::optional<Prediction> prediction;
};

/// The text above the table and the data beside the rows.
struct Heading {
  std::string program, backend, collective, memory, pinning;
  int ranks;
  std::string bytes_range;  // "8 .. 64K, factor 2"
  size_t iterations, warmup, checks;
  std::string time_of;  // "the slowest rank's"
  std::optional<MemoryUse> memory_use;
  std::string links;  // rondo only: the source of its link profile
};

struct TableStyle {
  bool wide = false;   // with algorithm, prediction, limit and efficiency
  bool csv = false;    // nothing but a line of names, and rows with all columns
  bool color = false;  // wrong results in red
};

void print_heading(std::FILE* out, const Heading& heading, const TableStyle& style);
void print_row(std::FILE* out, const Row& row, const TableStyle& style);
/// The statistics of single operations, as a comment.
void print_stats(std::FILE* out, const Row& row);
/// With a hint where rows predict that library memory would be much faster. As CSV there is none;
/// wrong results are then logged.
void print_footer(std::FILE* out, const std::vector<Row>& rows, const std::string& collective,
                  const TableStyle& style);

/// Whether all output was written; false, and logged, if not, as on a full disk.
bool is_written(std::FILE* file);

/// Wrong elements over all rows.
uint64_t wrong_elements(const std::vector<Row>& rows);
/// Mean bus bandwidth over all rows and both halves, in GB/s, as nccl-tests computes it.
double average_bus_bandwidth(const std::vector<Row>& rows);

/// One element of results[].
nlohmann::json to_json(const Row& row, const std::string& backend);
/// The whole document. `error`: why rows are missing; empty: nothing failed.
nlohmann::json to_json(const Heading& heading, const std::vector<Row>& rows,
                       const std::vector<std::string>& args, const std::string& start_time,
                       const std::string& end_time, const std::string& error = {});

}  // namespace rondo::bench
