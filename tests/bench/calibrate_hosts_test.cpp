// rondo-perf --calibrate with ranks on two hosts, from the outside: it measures the wire, and what
// runs there afterwards goes by it.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/harness/catch.hpp"
#include "tests/harness/hosts.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using nlohmann::json;
using testing::Hosts;
using testing::ProgramResult;
using testing::run_program;
using testing::TempDirectory;

/// A rank on each of two hosts.
ProgramResult perf(const Hosts& hosts, const std::vector<std::string>& arguments) {
  std::string agent;
  for (const std::string& word : hosts.agent()) agent += (agent.empty() ? "" : " ") + word;
  std::vector<std::string> argv{RONDO_RUN,   "--agent", agent,     "--hosts",
                                "h0:1,h1:1", "--",      RONDO_PERF};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_program(argv, {"RANK", "WORLD_SIZE", "RONDO_RENDEZVOUS", "RONDO_LINKS"},
                     std::chrono::seconds(200));
}

json json_of(const std::string& path) { return json::parse(std::ifstream(path)); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a calibration between hosts measures the wire, and choices and predictions go by it") {
  const Hosts hosts(2);
  const TempDirectory directory;
  const std::string links = directory.path() + "/links.json",
                    rows = directory.path() + "/rows.json";
  const ProgramResult calibrated =
      perf(hosts, {"--calibrate", links, "-b", "1K", "-e", "256K", "-f", "4", "-n", "3"});
  INFO(calibrated.out << calibrated.err);
  REQUIRE(calibrated.exit_code == 0);
  CHECK(contains(calibrated.out, "timings of 2 ranks on 2 hosts in 3 rounds fitted"));
  CHECK(contains(calibrated.out, "# within 15 %"));
  CHECK(contains(calibrated.out, " cases, 3 times each: about "));

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

  const ProgramResult swept = perf(hosts, {"all_reduce", "--sweep", "-b", "1K", "-e", "64K", "-f",
                                           "64", "-n", "3", "--links", links, "--json", rows});
  INFO(swept.out << swept.err);
  REQUIRE(swept.exit_code == 0);
  const json by_rank = json_of(rows)["results"];
  REQUIRE(by_rank.size() == 2);
  for (const json& row : by_rank) {
    const ProgramResult planned =
        run_program({RONDO_PLAN, "all_reduce", "--hosts", "2x1", "--size",
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
  const ProgramResult by_star =
      perf(hosts, {"all_reduce", "--wide", "-b", "64K", "-e", "64K", "-n", "2", "--links", links});
  INFO(by_star.out << by_star.err);
  REQUIRE(by_star.exit_code == 0);
  CHECK(contains(by_star.out, "star"));
}

TEST_CASE("the report of the machine is one for each host, with the wire") {
  const Hosts hosts(2);
  const ProgramResult ran = perf(hosts, {"--topology"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit_code == 0);
  CHECK(contains(ran.out, "== h0: rank 0 of 2\n"));
  CHECK(contains(ran.out, "== h1: rank 1 of 2\n"));
  for (const std::string line : {"host: ", "link profile: ", "wire_us_per_byte"}) {
    INFO(line);
    size_t reports = 0;
    for (size_t at = 0; (at = ran.out.find(line, at)) != std::string::npos; ++at) ++reports;
    CHECK(reports == 2);
  }
}

TEST_CASE("between hosts the advice to calibrate names the hosts") {
  const Hosts hosts(2);
  const ProgramResult ran = perf(hosts, {"all_reduce", "-b", "64", "-e", "64", "-n", "2"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit_code == 0);
  CHECK(contains(ran.out, "rondo-perf --calibrate, started on these hosts as this is"));
  CHECK_FALSE(contains(ran.out, "--ranks 2 --calibrate"));
}

}  // namespace
}  // namespace rondo
