// What a measurement looks like: nccl-tests' table and footer, with rondo's columns after
// nccl-tests' own so that its parsers go on working, and the same as JSON.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/measure.hpp"

namespace rondo::bench {

struct Row {
  Shape shape;
  int ranks;
  Measured measured;
  std::optional<Prediction> prediction;
};

/// What stands above the table and beside the rows.
struct Heading {
  std::string program, backend, collective, memory, pinning;
  int ranks;
  std::string bytes_range;  // "8 .. 64K, factor 2"
  size_t iterations, warmup, checks;
  std::optional<MemoryUse> memory_use;
};

void print_heading(std::FILE* out, const Heading& heading);
void print_row(std::FILE* out, const Row& row);
/// The spread of single operations, as a comment.
void print_stats(std::FILE* out, const Row& row);
void print_footer(std::FILE* out, const std::vector<Row>& rows, const std::string& collective);

/// Whether everything has been written; false, and logged, where it could not, as on a full disk.
bool is_written(std::FILE* file);

/// Wrong elements over all rows.
uint64_t wrong_elements(const std::vector<Row>& rows);
/// Mean bus bandwidth over all rows and both halves, in GB/s, as nccl-tests computes it.
double average_bus_bandwidth(const std::vector<Row>& rows);

/// One element of results[].
nlohmann::json to_json(const Row& row, const std::string& backend);
/// The whole document. `error`: why there are no more rows; empty: nothing went wrong.
nlohmann::json to_json(const Heading& heading, const std::vector<Row>& rows,
                       const std::vector<std::string>& args, const std::string& start_time,
                       const std::string& end_time, const std::string& error = {});

}  // namespace rondo::bench
