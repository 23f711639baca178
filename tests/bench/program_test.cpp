// rondo-perf as its users run it: ranks as processes and as threads, exit codes, what it prints and
// writes.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

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
  CHECK(contains(twice.output, "already started 3 ranks"));
  CHECK(half.exit_code != 0);
  CHECK(contains(half.output, "WORLD_SIZE"));
}
