// The table's columns and the JSON's names, which other people's parsers rely on.
#include "bench/harness/report.hpp"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/harness/json_file.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

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

std::string text_of(const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  print(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

std::string printed(const Row& row, const TableStyle& style) {
  return text_of([&](std::FILE* out) { print_row(out, row, style); });
}

std::string footer(const std::vector<Row>& rows, const TableStyle& style = {}) {
  return text_of([&](std::FILE* out) { print_footer(out, rows, "all_reduce", style); });
}

/// All of `part` is in the document.
void check_has(const nlohmann::json& document, const nlohmann::json& part) {
  nlohmann::json merged = document;
  merged.merge_patch(part);
  CHECK(merged == document);
}

/// A row of which nothing was measured but one time.
Row bare_row() {
  Row row = all_reduce_row();
  row.measured.out_of_place->wrong.reset();
  row.measured.in_place.reset();
  row.measured.limit_us.reset();
  row.prediction.reset();
  return row;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// As wide as a row gets: 64 GiB of bfloat16, more than a thousand ranks, wrong results.
Row widest_row() {
  Row row = all_reduce_row();
  row.shape = {.collective = Collective::kReduce,
               .type = DataType::kBFloat16,
               .op = ReduceOp::kMulSum,
               .root = 1023,
               .count = size_t{1} << 32};
  row.measured.out_of_place = HalfRow{.time_us = 9'999'999, .wrong = 99'999};
  row.measured.in_place = HalfRow{.time_us = 50'000, .wrong = 999'999};
  row.prediction = Prediction{.algorithm = "one-shot-direct", .time_us = 12'345'678};
  return row;
}

}  // namespace

TEST_CASE("a row has nccl-tests' thirteen columns, and rondo's after them if wide") {
  const auto columns = [](const TableStyle& style) {
    std::istringstream words(printed(all_reduce_row(), style));
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    return found;
  };
  std::vector<std::string> expected = {"4000000", "1000000", "float", "sum", "-1",
                                       "2000.00", "2.00",    "3.00",  "0",   "1000.00",
                                       "4.00",    "6.00",    "3"};
  CHECK(columns({}) == expected);
  expected.insert(expected.end(), {"ring", "1900.00", "500.00", "0.25", "0.50"});
  CHECK(columns({.wide = true}) == expected);
}

TEST_CASE("rows and headings have one width: 100 columns unless wide") {
  Heading heading{};
  heading.iterations = 0;
  heading.pinning = "pinned to CPUs 0 to 1023";
  heading.bytes_range = "8 to 64G by factor 2";
  heading.time_of = "the mean over the ranks";
  for (const bool wide : {false, true}) {
    const TableStyle style{.wide = wide};
    const auto above =
        split(text_of([&](std::FILE* out) { print_heading(out, heading, style); }), '\n');
    REQUIRE(above.size() > 3);
    const std::string names = above[above.size() - 2], units = above.back();
    INFO(names);
    CHECK(names.size() == (wide ? 151 : 100));
    for (const std::string& line : above) CHECK(line.size() <= names.size());
    CHECK(units.size() <= names.size());
    for (const Row& row : {all_reduce_row(), widest_row()}) {
      const std::string line = printed(row, style);
      INFO(line);
      CHECK(line.size() == names.size() + 1);  // and the line's end
      // Every column ends where its name does.
      CHECK(line[names.find("root") + 4] == ' ');
      CHECK(line[names.find("#wrong") + 6] == ' ');
    }
  }
}

TEST_CASE("as CSV a row has every column, empty where nothing was measured") {
  const TableStyle csv{.csv = true};
  const auto names = split(text_of([&](std::FILE* out) { print_heading(out, {}, csv); }), ',');
  CHECK(names.front() == "size");
  CHECK(names.back() == "limit_us\n");
  CHECK(printed(all_reduce_row(), csv) ==
        "4000000,1000000,float,sum,-1,2000,2,3,0,1000,4,6,3,ring,1900,500\n");
  CHECK(printed(bare_row(), csv) == "4000000,1000000,float,sum,-1,2000,2,3,,,,,,,,\n");
  CHECK(std::count(names.begin(), names.end(), "") == 0);
  CHECK(split(printed(all_reduce_row(), csv), ',').size() == names.size());
  CHECK(footer({bare_row()}, csv).empty());
}

TEST_CASE("wrong results are red in color, and only they") {
  const TableStyle color{.color = true};
  const std::string line = printed(all_reduce_row(), color);
  const std::string red = "\033[31m3\033[0m";
  REQUIRE(line.find(red) != std::string::npos);
  std::string plain = line;
  plain.replace(plain.find(red), red.size(), "3");
  CHECK(plain == printed(all_reduce_row(), {}));
  CHECK(plain.find('\033') == std::string::npos);
  CHECK(footer({all_reduce_row()}, color).find("3 \033[31mFAILED\033[0m") != std::string::npos);
  CHECK(footer({all_reduce_row()}).find('\033') == std::string::npos);
}

TEST_CASE("the footer names the largest size at which library memory would be much faster") {
  const auto predicted = [](size_t count, double plain_us, std::optional<double> library_us) {
    Row row = all_reduce_row();
    row.shape.count = count;
    row.prediction = Prediction{.algorithm = "ring", .time_us = plain_us, .library_us = library_us};
    return row;
  };
  const std::string text = footer({predicted(1024, 10, 1.0), predicted(4096, 40, 10.0),
                                   predicted(2048, 20, 4.0), predicted(8192, 14, 10.0)});
  INFO(text);
  CHECK(text.find("would be 4.0 times as fast at 16K:") != std::string::npos);
  CHECK(text.find("predicted 10.00 us instead of 40.00 us") != std::string::npos);
  CHECK(footer({predicted(1024, 15, std::nullopt)}).find("Library") == std::string::npos);
  CHECK(footer({predicted(1024, 15, 10.0)}).find("Library") == std::string::npos);
  for (const std::string& line : split(text, '\n')) CHECK(line.size() <= 100);
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
  check_has(document["in_place"], {{"time_min", 900},
                                   {"time_median", 1000},
                                   {"time_mean", 1010},
                                   {"time_p95", 1100},
                                   {"time_p99", 1200},
                                   {"time_max", 1300},
                                   {"time_samples", 100}});
  CHECK_FALSE(document["out_of_place"].contains("time_min"));
  const std::string line = text_of([&](std::FILE* out) { print_stats(out, row); });
  CHECK(line.starts_with("#"));
  CHECK(line.find("in-place") != std::string::npos);
  CHECK(line.find("p99 1200.00") != std::string::npos);
  CHECK(line.find("out-of-place") == std::string::npos);
}

TEST_CASE("an error and the memory stand in the document") {
  Heading heading{};
  heading.memory_use = MemoryUse{.shared_bytes = 5, .private_bytes = 6};
  const auto document = to_json(heading, {}, {}, "", "", "no more");
  check_has(document, {{"error", "no more"}});
  check_has(document["config"]["memory_per_rank"], {{"shared_bytes", 5}, {"private_bytes", 6}});
  CHECK_FALSE(to_json(Heading{}, {}, {}, "", "").contains("error"));
}

TEST_CASE("what was not measured is marked, and not zero") {
  CHECK(printed(bare_row(), {}).find("N/A") != std::string::npos);
  const auto document = to_json(bare_row(), "x");
  CHECK(document["out_of_place"]["nwrong"].is_null());
  CHECK(document["in_place"].is_null());
  CHECK(document["algorithm"].is_null());
  CHECK_FALSE(document.contains("limit_us"));
}

TEST_CASE("JSON rows carry nccl-tests' names and rondo's") {
  const auto document = to_json(all_reduce_row(), "rondo");
  check_has(document, {{"size", 4'000'000},
                       {"count", 1'000'000},
                       {"type", "float"},
                       {"redop", "sum"},
                       {"root", -1},
                       {"out_of_place", {{"time", 2000.0}}},
                       {"in_place", {{"nwrong", 3}}},
                       {"backend", "rondo"},
                       {"algorithm", "ring"},
                       {"predicted_us", 1900.0},
                       {"limit_us", 500.0}});
  CHECK(document["out_of_place"]["alg_bw"] == Approx(2.0));
  CHECK(document["out_of_place"]["bus_bw"] == Approx(3.0));
  Row broadcast = all_reduce_row();
  broadcast.shape.collective = Collective::kBroadcast;
  broadcast.shape.root = 2;
  check_has(to_json(broadcast, "rondo"), {{"redop", "none"}, {"root", 2}});
}

TEST_CASE("totals cover both halves of all rows") {
  const std::vector<Row> rows = {all_reduce_row(), all_reduce_row()};
  CHECK(wrong_elements(rows) == 6);
  CHECK(average_bus_bandwidth(rows) == Approx(4.5));
  // As nccl-tests' own documents have both.
  const auto document = to_json(Heading{}, rows, {}, "", "");
  CHECK(document["average_bus_bandwidth"]["bandwidth"] == Approx(4.5));
  CHECK(document["average_bus_bandwidth"]["okay"] == "unchecked");
  CHECK(document["out_of_bounds"]["okay"] == (document["out_of_bounds"]["count"] == 0));
}

TEST_CASE("a JSON file that the disk has no room for is as before, with nothing beside it") {
  const testing::TempDirectory place;
  const std::string path = place.path() + "/result.json";
  std::ofstream(path) << "{}";
  JsonFile file(path);
  REQUIRE(file.open().ok());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto action = signal(SIGXFSZ, SIG_IGN);
  rlimit full = before;
  full.rlim_cur = 16;
  setrlimit(RLIMIT_FSIZE, &full);
  const Status written = file.write({{"results", {std::string(1000, '-')}}});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, action);
  CHECK(written.message() == "cannot write --json '" + path + "': File too large");
  CHECK_FALSE(std::filesystem::exists(path + ".part"));
  CHECK(std::filesystem::file_size(path) == 2);
}
