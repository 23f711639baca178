// The document of rondo-perf --json: every row, and however the run ends, why.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/perf_program.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

using namespace rondo;

namespace {

using namespace perf_program;  // NOLINT: this file is about it

/// The children of a process, oldest first.
std::vector<int> children_of(pid_t pid) {
  const std::string task = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid);
  std::ifstream file(task + "/children");
  std::vector<int> children;
  for (int child = 0; file >> child;) children.push_back(child);
  return children;
}

/// Waits until `condition`, but not for ever.
void await(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) usleep(10'000);
  REQUIRE(condition());
}

/// A run of minutes, which `stop` ends once its document has a row.
testing::ProgramResult run_until(const std::string& ranks, const TemporaryJson& json,
                                 const std::function<void(pid_t)>& stop) {
  return testing::run_program({RONDO_PERF, "all_reduce", ranks, "-b", "8", "-e", "64M", "-f", "2",
                               "-n", "500", "--json", json.path()},
                              {}, std::chrono::seconds(60), [&](pid_t pid) {
                                await([&] { return json.has_results(); });
                                stop(pid);
                              });
}

}  // namespace

TEST_CASE("a run that loses a rank leaves a valid JSON document with the reason") {
  const TemporaryJson json;
  const auto ran = run_until("--ranks=3", json, [&](pid_t pid) {
    CHECK(contains(json.read()["error"].get<std::string>(), "not come to its end"));
    REQUIRE(children_of(pid).size() == 3);
    kill(children_of(pid)[1], SIGKILL);
  });
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 128 + SIGKILL);
  const auto document = json.read();
  INFO(document.dump(1));
  CHECK(document["config"]["ranks"] == 3);
  CHECK(contains(document["error"].get<std::string>(), "rank 1"));
}

TEST_CASE("an interrupted run keeps what it has measured, and says why it ended") {
  for (const char* ranks : {"--ranks=2", "-t2", "--ranks=1"}) {
    const TemporaryJson json;
    const auto ran = run_until(ranks, json, [](pid_t pid) {
      kill(pid, SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      kill(pid, SIGTERM);  // as timeout(1), once more
    });
    INFO(ran.out << ran.err);
    CHECK(ran.exit_code == 128 + SIGTERM);
    const auto document = json.read();
    CHECK(contains(document["error"].get<std::string>(), "stopped by Terminated"));
    CHECK(document["results"].size() > 0);
  }
}

TEST_CASE("a run whose ranks do not meet leaves a valid JSON document with the reason") {
  const TemporaryJson json;
  for (const auto& [ranks, how] :
       {std::pair(3, "--ranks 3"), {3, "--ranks 3 --threads"}, {1, ""}}) {
    for (const auto& [wrong, reason] :
         {std::pair("--pace fast", "fast"), {"--device cuda", "cuda"}}) {
      const Ran ran =
          run("all_reduce -b 8 -e 8 -n 1 --json " + json.path() + " " + wrong + " " + how);
      INFO(how << ": " << ran.output);
      if (ran.exit_code == 0) continue;  // there is a GPU
      const auto document = json.read();
      CHECK(document["results"].empty());
      CHECK(document["config"]["ranks"] == ranks);
      CHECK(contains(document["error"].get<std::string>(), reason));
    }
  }
}

TEST_CASE("a run without a result leaves the JSON file of another run as it was") {
  const TemporaryJson json;
  const auto text = [&] {
    std::ifstream file(json.path());
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::ofstream(json.path()) << "precious";
  const std::string short_run = "all_reduce -b 8 -e 8 -n 1 --json " + json.path();
  for (const char* wrong : {" --pace fast", " --pace fast --ranks 2", " --pace fast -t2"}) {
    CHECK(run(short_run + wrong).exit_code != 0);
    CHECK(text() == "precious");
  }
  REQUIRE(run(short_run).exit_code == 0);
  const std::string results = text();
  REQUIRE(json.read()["results"].size() == 1);
  CHECK(run("broadcast -r 2 -b 8 -e 8 -n 1 --json " + json.path()).exit_code != 0);
  CHECK(text() == results);
}

TEST_CASE("the JSON file holds every row") {
  const MeasuredRun ran("all_reduce --ranks 2 -b 8 -e 128 -f 4 -n 2");
  REQUIRE(ran.results.size() == 3);
  CHECK(ran.document["config"]["ranks"] == 2);
  for (const auto& row : ran.results) {
    CHECK(row["backend"] == "rondo");
    CHECK(row["algorithm"].is_string());
    CHECK(row["predicted_us"].is_number());
    CHECK(row["out_of_place"]["nwrong"] == 0);
    CHECK(row["in_place"]["time"].get<double>() > 0);
  }
}
