// rondo-status on a job that hangs on two hosts: each host's board shows all ranks, where they are, and
// the step in which they wait.
#include "tests/harness/hosts.hpp"

#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

using nlohmann::json;

/// The communicator that a process of the host belongs to, once ranks 0 to 2 have waited for a while;
/// and rank 3 is seen to be stopped; null: not yet.
json hanging_on(const Hosts& hosts, int host) {
  for (const pid_t pid : hosts.processes(host)) {
    const ProgramResult asked = run_program({RONDO_STATUS, std::to_string(pid), "--json", "-"}, {},
                                            std::chrono::seconds(20));
    if (asked.exit_code != 0) continue;
    const json document = json::parse(asked.out);
    for (const json& communicator : document["communicators"]) {
      const json& ranks = communicator["ranks"];
      bool hangs =
          communicator["communicator"] == "training" && ranks.size() == 4 && ranks[3]["ended"] == 1;
      for (const int rank : {0, 1, 2}) {
        hangs = hangs && ranks[rank]["begun"] == 2 && ranks[rank].contains("step") &&
                ranks[rank]["seconds"] > 0.1;
      }
      hangs = hangs && ranks[3]["process"] == "stopped by a signal";
      if (hangs) return communicator;
    }
  }
  return nullptr;
}

json await_hanging_on(const Hosts& hosts, int host) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (std::chrono::steady_clock::now() < until) {
    json found = hanging_on(hosts, host);
    if (!found.is_null()) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw std::runtime_error("the job never hung as it should");
}

TEST_CASE("a hierarchical operation that hangs is seen from every host, with its steps") {
  const Hosts hosts(2);
  std::string agent;
  for (const std::string& word : hosts.agent()) agent += (agent.empty() ? "" : " ") + word;
  const ProgramResult ran = run_program(
      {RONDO_RUN, "--agent", agent, "--hosts", "h0:2,h1:2", "--", RONDO_HANG, "hierarchical"},
      {"RANK", "WORLD_SIZE", "RONDO_RENDEZVOUS"}, std::chrono::seconds(100), [&](pid_t) {
        int stopped = 0;
        for (const int host : {0, 1}) {
          const json communicator = await_hanging_on(hosts, host);
          INFO(communicator.dump(1));
          CHECK(communicator["hosts"] == json({"h0", "h1"}));
          const json& ranks = communicator["ranks"];
          for (const int rank : {0, 1, 2, 3}) {
            CHECK(ranks[rank]["host"] == rank / 2);
            CHECK(ranks[rank].contains("age_seconds") == (rank / 2 != host));
            if (rank == 3) continue;
            CHECK((ranks[rank]["process"] == "") == (rank / 2 != host));
            CHECK(ranks[rank]["algorithm"] == "hierarchical");
            CHECK(ranks[rank]["steps"] > 2);
            CHECK(ranks[rank]["action"] != "");
          }
          // Its host's agent is another process, which says so to the other host.
          CHECK(communicator["chains"].dump().find("is stopped by a signal (pid " +
                                                   ranks[3]["pid"].dump() + " on host h1)") !=
                std::string::npos);
          stopped = ranks[3]["pid"];
        }
        const ProgramResult records =
            run_program({RONDO_STATUS, std::to_string(stopped), "--records"}, {});
        INFO(records.out << records.err);
        for (const int rank : {0, 1, 2, 3}) {
          const std::string begin = "rank " + std::to_string(rank) + " (pid ";
          const size_t at = records.out.find(begin);
          REQUIRE(at != std::string::npos);
          CHECK(records.out.find("\n  #1 all_reduce(float, sum, count 3000)", at) !=
                std::string::npos);
        }
        kill(stopped, SIGCONT);
      });
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
}

}  // namespace
}  // namespace rondo::testing
