// rondo-perf as its users run it: ranks as processes and as threads, exit codes, what it prints and
// writes.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/harness/catch.hpp"

namespace {

struct Ran {
  int exit_code;
  std::string output;
};

Ran run(const std::string& arguments) {
  const std::string command = std::string("'" RONDO_PERF "' ") + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  char piece[4096];
  for (size_t size; (size = std::fread(piece, 1, sizeof(piece), pipe)) > 0;)
    output.append(piece, size);
  const int wait_status = pclose(pipe);
  return {.exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128, .output = output};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kShort = " -b 8 -e 64K -f 32 -n 4 -w 1";

}  // namespace

TEST_CASE("every collective runs on processes and on threads, and finds nothing wrong") {
  for (const char* collective : {"all_reduce", "reduce_scatter", "all_gather", "broadcast"}) {
    for (const char* ranks :
         {" --ranks 1", " --ranks 2", " --ranks 3 --threads", " --ranks 2 --memory library"}) {
      const Ran ran = run(collective + std::string(ranks) + kShort);
      INFO(collective << ranks << "\n" << ran.output);
      CHECK(ran.exit_code == 0);
      CHECK(contains(ran.output, "# Out of bounds values : 0 OK"));
      CHECK(contains(ran.output, "# Avg bus bandwidth"));
    }
  }
}

TEST_CASE("a barrier is timed") {
  const Ran ran = run("barrier --ranks 2 -n 10");
  INFO(ran.output);
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.output, "N/A"));
}

TEST_CASE("all types and operators are checked exactly") {
  const Ran ran = run("all_reduce --ranks 3 -b 4K -e 4K -n 1 -d all -o all");
  INFO(ran.output);
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.output, "bfloat16"));
  CHECK(contains(ran.output, "avg"));
}

TEST_CASE("without a check nothing is claimed") {
  const Ran ran = run("all_reduce --ranks 2 -c 0" + kShort);
  INFO(ran.output);
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.output, "N/A"));
}

TEST_CASE("the JSON file holds every row") {
  const auto path = std::filesystem::temp_directory_path() /
                    ("rondo-perf-test-" + std::to_string(getpid()) + ".json");
  const Ran ran = run("all_reduce --ranks 2 -b 8 -e 128 -f 4 -n 2 --json '" + path.string() + "'");
  INFO(ran.output);
  REQUIRE(ran.exit_code == 0);
  const auto document = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  REQUIRE(document["results"].size() == 3);
  CHECK(document["config"]["ranks"] == 2);
  for (const auto& row : document["results"]) {
    CHECK(row["backend"] == "rondo");
    CHECK(row["algorithm"].is_string());
    CHECK(row["predicted_us"].is_number());
    CHECK(row["out_of_place"]["nwrong"] == 0);
    CHECK(row["in_place"]["time"].get<double>() > 0);
  }
}

TEST_CASE(
    "a calibration writes a profile that predicts what was measured, and a sweep goes by it") {
  if (std::thread::hardware_concurrency() < 2) return;  // refused there, as it should be
  const auto directory =
      std::filesystem::temp_directory_path() / ("rondo-perf-links-" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  const std::string links = (directory / "links.json").string();
  const std::string sweep_file = (directory / "sweep.json").string();
  const Ran calibrated = run("--calibrate '" + links + "' --ranks 2 -b 64 -e 1M -f 4 -n 3");
  INFO(calibrated.output);
  REQUIRE(calibrated.exit_code == 0);
  CHECK(contains(calibrated.output, "timings of 2 ranks in 3 rounds fitted, written to " + links));
  CHECK(contains(calibrated.output, "# within 15 %"));
  auto profile = nlohmann::json::parse(std::ifstream(links));
  CHECK(profile["corrections"]["ranks"] == 2);
  // Every algorithm of every collective, of which those without direct ones on both memories.
  CHECK(profile["corrections"]["tables"].size() > 50);

  // A profile in which the star is a thousand times as fast as it is: the choice follows.
  for (auto& table : profile["corrections"]["tables"]) {
    if (table["algorithm"] != "star") continue;
    for (auto& factor : table["factor"]) factor = factor.get<double>() / 1000;
  }
  std::ofstream(links) << profile;
  const Ran swept = run("all_reduce --sweep --ranks 2 -b 64 -e 64K -f 32 -n 3 --links '" + links +
                        "' --json '" + sweep_file + "'");
  INFO(swept.output);
  REQUIRE(swept.exit_code == 0);
  CHECK(contains(swept.output, "# chosen within 5 % of the best"));
  const auto sweep = nlohmann::json::parse(std::ifstream(sweep_file));
  REQUIRE(sweep["results"].size() == 3);
  for (const auto& row : sweep["results"]) {
    CHECK(row["chosen"] == "star");
    CHECK(row["algorithms"].size() == 5);  // plain memory: no direct ones
    double best = row["algorithms"][0]["time"];
    for (const auto& one : row["algorithms"]) best = std::min(best, one["time"].get<double>());
    for (const auto& one : row["algorithms"]) {
      if (one["algorithm"] == row["best"]) CHECK(one["time"] == best);
    }
  }
  // And what is measured without a sweep goes by it too.
  const Ran measured = run("all_reduce --ranks 2 -b 64 -e 64 -n 2 --links '" + links + "'");
  CHECK(contains(measured.output, "star"));
  std::filesystem::remove_all(directory);
}

TEST_CASE("a calibration is refused where it would say nothing") {
  const std::string too_many = std::to_string(std::thread::hardware_concurrency() + 1);
  for (const std::string& arguments :
       {std::string("--ranks 1"), "--ranks " + too_many, std::string("--ranks 2 --threads"),
        std::string("--ranks 2 --pace 1GB/s")}) {
    const Ran ran = run("--calibrate /nonexistent/x.json -e 64 " + arguments);
    INFO(arguments << "\n" << ran.output);
    CHECK(ran.exit_code != 0);
    CHECK(contains(ran.output, "a CPU for each"));
  }
}

TEST_CASE("mistakes are named and end with a code other than 0") {
  const struct {
    const char* arguments;
    const char* named;
  } kMistakes[] = {
      {"", "COLLECTIVE"},
      {"all_reduze", "all_reduze"},
      {"all_reduce --algorithm fastest", "two-shot-direct"},  // the valid names are listed
      {"all_reduce --device cuda", "cuda"},
      {"all_reduce -b 8X", "8X"},
      {"broadcast --ranks 2 -b 8 -e 8 -r 2", "root 2"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 --json /nonexistent/x.json", "/nonexistent/x.json"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 --pace fast", "fast"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 --links /nonexistent/links", "/nonexistent/links"},
      {"all_reduce --calibrate x.json --ranks 2", "takes them all"},
      {"--calibrate x.json --sweep --ranks 2", "--sweep comes after it"},
      {"--calibrate /nonexistent/x.json --ranks 2 -b 64 -e 64 -n 1", "/nonexistent/x.json"},
  };
  for (const auto& mistake : kMistakes) {
    const Ran ran = run(mistake.arguments);
    INFO(mistake.arguments << "\n" << ran.output);
    CHECK(ran.exit_code != 0);
    CHECK(contains(ran.output, mistake.named));
  }
}

TEST_CASE("a launcher's ranks are not started twice") {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "3", 1);
  const Ran twice = run("all_reduce --ranks 2 -b 8 -e 8 -n 1");
  unsetenv("WORLD_SIZE");
  const Ran half = run("all_reduce -b 8 -e 8 -n 1");
  unsetenv("RANK");
  INFO(twice.output << half.output);
  CHECK(twice.exit_code != 0);
  CHECK(contains(twice.output, "WORLD_SIZE"));
  CHECK(half.exit_code != 0);
  CHECK(contains(half.output, "WORLD_SIZE"));
}
