// The table's columns and the JSON's names, which other people's parsers rely on.
#include "bench/harness/report.hpp"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

Row all_reduce_row() {
  return {.shape = {.collective = Collective::kAllReduce,
                    .type = DataType::kFloat32,
                    .op = ReduceOp::kSum,
                    .root = 0,
                    .count = 1'000'000},
          .ranks = 4,
          .measured = {.out_of_place = HalfRow{.time_us = 2000, .wrong = 0},
                       .in_place = HalfRow{.time_us = 1000, .wrong = 3},
                       .limit_us = 500},
          .prediction = Prediction{.algorithm = "ring", .time_us = 1900}};
}

std::string printed(const Row& row) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  print_row(stream, row);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

}  // namespace

TEST_CASE("a row starts with nccl-tests' thirteen columns") {
  std::istringstream words(printed(all_reduce_row()));
  std::vector<std::string> columns;
  for (std::string word; words >> word;) columns.push_back(word);
  CHECK(columns == std::vector<std::string>{"4000000", "1000000", "float", "sum", "-1", "2000.00",
                                            "2.00", "3.00", "0", "1000.00", "4.00", "6.00", "3",
                                            "ring", "1900.00", "500.00", "0.25", "0.50"});
}

TEST_CASE("the spread stands in the JSON, and in a comment for people") {
  Row row = all_reduce_row();
  row.measured.in_place->spread = Spread{.samples = 100,
                                         .min = 900,
                                         .median = 1000,
                                         .mean = 1010,
                                         .p95 = 1100,
                                         .p99 = 1200,
                                         .max = 1300};
  const auto document = to_json(row, "x");
  CHECK(document["in_place"]["time_min"] == 900);
  CHECK(document["in_place"]["time_median"] == 1000);
  CHECK(document["in_place"]["time_mean"] == 1010);
  CHECK(document["in_place"]["time_p95"] == 1100);
  CHECK(document["in_place"]["time_p99"] == 1200);
  CHECK(document["in_place"]["time_max"] == 1300);
  CHECK(document["in_place"]["time_samples"] == 100);
  CHECK_FALSE(document["out_of_place"].contains("time_min"));
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  print_stats(stream, row);
  std::fclose(stream);
  const std::string line(text, size);
  std::free(text);
  CHECK(line.starts_with("#"));
  CHECK(line.find("in-place") != std::string::npos);
  CHECK(line.find("p99 1200.00") != std::string::npos);
  CHECK(line.find("out-of-place") == std::string::npos);
}

TEST_CASE("an error and the memory stand in the document") {
  Heading heading{};
  heading.memory_use = MemoryUse{.shared_bytes = 5, .private_bytes = 6};
  const auto document = to_json(heading, {}, {}, "", "", "no more");
  CHECK(document["error"] == "no more");
  CHECK(document["config"]["memory_per_rank"]["shared_bytes"] == 5);
  CHECK(document["config"]["memory_per_rank"]["private_bytes"] == 6);
  CHECK_FALSE(to_json(Heading{}, {}, {}, "", "").contains("error"));
}

TEST_CASE("what was not measured is marked, and not zero") {
  Row row = all_reduce_row();
  row.measured.out_of_place->wrong.reset();
  row.measured.in_place.reset();
  row.measured.limit_us.reset();
  row.prediction.reset();
  const std::string line = printed(row);
  CHECK(line.find("N/A") != std::string::npos);
  const auto document = to_json(row, "x");
  CHECK(document["out_of_place"]["nwrong"].is_null());
  CHECK(document["in_place"].is_null());
  CHECK(document["algorithm"].is_null());
  CHECK_FALSE(document.contains("limit_us"));
}

TEST_CASE("JSON rows carry nccl-tests' names and rondo's") {
  const auto row = to_json(all_reduce_row(), "rondo");
  CHECK(row["size"] == 4'000'000);
  CHECK(row["count"] == 1'000'000);
  CHECK(row["type"] == "float");
  CHECK(row["redop"] == "sum");
  CHECK(row["root"] == -1);
  CHECK(row["out_of_place"]["time"] == 2000.0);
  CHECK(row["out_of_place"]["alg_bw"] == Approx(2.0));
  CHECK(row["out_of_place"]["bus_bw"] == Approx(3.0));
  CHECK(row["in_place"]["nwrong"] == 3);
  CHECK(row["backend"] == "rondo");
  CHECK(row["algorithm"] == "ring");
  CHECK(row["predicted_us"] == 1900.0);
  CHECK(row["limit_us"] == 500.0);
}

TEST_CASE("totals cover both halves of all rows") {
  const std::vector<Row> rows = {all_reduce_row(), all_reduce_row()};
  CHECK(wrong_elements(rows) == 6);
  CHECK(average_bus_bandwidth(rows) == Approx(4.5));
}

TEST_CASE("collectives that reduce nothing say so") {
  Row row = all_reduce_row();
  row.shape.collective = Collective::kBroadcast;
  row.shape.root = 2;
  const auto document = to_json(row, "rondo");
  CHECK(document["redop"] == "none");
  CHECK(document["root"] == 2);
}
