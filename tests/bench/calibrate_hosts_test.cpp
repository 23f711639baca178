// rondo-perf --calibrate with ranks on two hosts, from the outside: it measures the wire, and what
// runs there afterwards goes by it.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/bench/perf_program.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/hosts.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using nlohmann::json;
using perf_program::contains, perf_program::count;
using testing::Hosts;
using testing::ProgramResult;
using testing::run_program;
using testing::TempDirectory;

/// Of a rank on each of two hosts, which must succeed.
std::string output_of(const Hosts& hosts, const std::vector<std::string>& arguments) {
  std::string agent;
  for (const std::string& word : hosts.agent()) agent += (agent.empty() ? "" : " ") + word;
  std::vector<std::string> argv{RONDO_RUN,   "--agent", agent,     "--hosts",
                                "h0:1,h1:1", "--",      RONDO_PERF};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const ProgramResult ran = run_program(
      argv, {"RANK", "WORLD_SIZE", "RONDO_RENDEZVOUS", "RONDO_LINKS"}, std::chrono::seconds(200));
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit_code == 0);
  return ran.out;
}

json json_of(const std::string& path) { return json::parse(std::ifstream(path)); }

TEST_CASE("a calibration between hosts measures the wire, and choices and predictions go by it") {
  const Hosts hosts(2);
  const TempDirectory directory;
  const std::string links = directory.path() + "/links.json",
                    rows = directory.path() + "/rows.json";
  const std::string calibrated =
      output_of(hosts, {"--calibrate", links, "-b", "1K", "-e", "256K", "-f", "4", "-n", "3"});
  INFO(calibrated);
  CHECK(contains(calibrated, "timings of 2 ranks on 2 hosts in 3 rounds fitted"));
  CHECK(contains(calibrated, "# within 15 %"));
  CHECK(contains(calibrated, " cases, 3 times each: about "));

  json profile = json_of(links);
  CHECK(profile["version"] == 4);
  CHECK(profile["name"] == "calibrated with 2 ranks on 2 hosts");
  REQUIRE(profile["corrections"].size() == 1);
  CHECK(profile["corrections"][0]["hosts"] == std::vector<int>{0, 1});
  CHECK(profile["corrections"][0]["tables"].size() > 20);
  const json& constants = profile["constants"];
  CHECK(constants["alpha_us"] == 0.11);  // a host's are not measured, and stay built in
  // On a busy machine any of them may come out as 0, but not all; and none is the built-in one.
  double wire = 0;
  for (const auto& [constant, built_in] :
       {std::pair("wire_alpha_us", 10.0), {"wire_message_us", 0.5}, {"wire_us_per_byte", 1e-4}}) {
    INFO(constant);
    CHECK(constants[constant] != built_in);
    wire += constants[constant].get<double>();
  }
  CHECK(wire + constants["wire_both_us_per_byte"].get<double>() > 0);

  output_of(hosts, {"all_reduce", "--sweep", "-b", "1K", "-e", "64K", "-f", "64", "-n", "3",
                    "--links", links, "--json", rows});
  const json by_rank = json_of(rows)["results"];
  REQUIRE(by_rank.size() == 2);
  for (const json& row : by_rank) {
    const ProgramResult planned =
        run_program({RONDO_PLAN, "all_reduce", "--ranks", "2x1", "--size",
                     std::to_string(row["size"].get<size_t>()), "--links", links, "--json", "-"},
                    {}, std::chrono::seconds(60));
    INFO(planned.err);
    REQUIRE(planned.exit_code == 0);
    const json plan = json::parse(planned.out);
    CHECK(plan["algorithm"] == row["chosen"]);
    for (const json& candidate : plan["candidates"]) {
      for (const json& one : row["algorithms"]) {
        if (one["algorithm"] != candidate["algorithm"]) continue;
        CHECK(candidate["predicted_us"].get<double>() ==
              Approx(one["predicted_us"].get<double>()).epsilon(1e-6));
      }
    }
  }

  // A profile in which the star is a thousand times as fast as it is: the choice follows.
  for (json& table : profile["corrections"][0]["tables"]) {
    if (table["algorithm"] != "star") continue;
    for (json& factor : table["factor"]) factor = factor.get<double>() / 1000;
  }
  std::ofstream(links) << profile;
  CHECK(contains(output_of(hosts, {"all_reduce", "--wide", "-b", "64K", "-e", "64K", "-n", "2",
                                   "--links", links}),
                 "star"));
}

TEST_CASE("the report of the machine is one for each host, with the wire") {
  const Hosts hosts(2);
  const std::string report = output_of(hosts, {"--topology"});
  INFO(report);
  CHECK(contains(report, "== h0: rank 0 of 2\n"));
  CHECK(contains(report, "== h1: rank 1 of 2\n"));
  for (const std::string line : {"host: ", "link profile: ", "wire_us_per_byte"}) {
    INFO(line);
    CHECK(count(report, line) == 2);
  }
}

TEST_CASE("between hosts the advice to calibrate names the hosts") {
  const Hosts hosts(2);
  const std::string report = output_of(hosts, {"all_reduce", "-b", "64", "-e", "64", "-n", "2"});
  CHECK(contains(report, "rondo-perf --calibrate, started on these hosts as this is"));
  CHECK_FALSE(contains(report, "--ranks 2 --calibrate"));
}

}  // namespace
}  // namespace rondo
