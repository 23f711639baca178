// rondo-train --elastic on two hosts: a rank, or a host, is lost, and the others go on.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tests/harness/hosts.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer {
namespace {

using rondo::testing::Hosts;
using rondo::testing::ProgramResult;
using namespace testing;  // NOLINT: the trainer's

/// A process of the host with that variable.
pid_t process_with(const Hosts& hosts, int host, const std::string& variable) {
  for (const pid_t pid : hosts.processes(host)) {
    std::istringstream variables(read_text("/proc/" + std::to_string(pid) + "/environ"));
    for (std::string each; std::getline(variables, each, '\0');) {
      if (each == variable) return pid;
    }
  }
  return -1;
}

// A step takes a millisecond, under sanitizers ten: enough of them for the death to come before the
// end.
const std::string kSteps = rondo::testing::kSanitized ? "150" : "1000";

/// rondo-train on two hosts under rondo-run; `loses` is called after the fifth step.
ProgramResult train_on_hosts(const Hosts& hosts, const std::string& file, const Words& words,
                             const std::function<void()>& loses,
                             const std::string& ranks = "h0:2,h1:2") {
  std::string agent;
  for (const std::string& word : hosts.agent()) agent += word + " ";
  std::thread thread;
  ProgramResult result =
      rondo::testing::run_program(Words{RONDO_RUN, "--elastic", "--agent", agent, "--hosts", ranks,
                                        "--", RONDO_TRAIN, "--elastic", "--json", file} +
                                      words,
                                  kNoLauncher, std::chrono::seconds{240}, [&](pid_t) {
                                    thread = std::thread([&] {
                                      if (await_step(file, 5)) loses();
                                    });
                                  });
  thread.join();
  return result;
}

/// `document`, of a run that lost ranks once, against a run that had so many from there on.
void check_against_reference(const Workplace& place, const Words& words, const json& document) {
  const json& death = document["summary"]["deaths"][0];
  const Words saves = {"--checkpoint-dir", place.file("reference"), "--resume"};
  const json first =
      place.train_on(with(words, "--steps", std::to_string(death["after_step"].get<int>())) +
                     saves + Words{"--ranks", "4"});
  const json rest = place.train_on(
      words + saves + Words{"--ranks", std::to_string(death["ranks_left"].get<int>())});
  std::vector<double> losses = losses_of(first);
  for (const double loss : losses_of(rest)) losses.push_back(loss);
  CHECK(losses_of(document) == losses);
  CHECK(document["summary"]["parameter_hash"] == rest["summary"]["parameter_hash"]);
}

TEST_CASE("elastic: a rank of either host is killed") {
  for (const int rank : {0, 3}) {
    INFO("rank " << rank);
    const Hosts hosts(2);
    const Workplace place;
    const std::string file = place.file("elastic.json");
    const Words words =
        Words{"--width",        "256",         "--batch", "8",      "--steps",   kSteps,
              "--reproducible", "--log-every", "0",       "--data", place.data()};
    const ProgramResult result = train_on_hosts(hosts, file, words, [&] {
      const pid_t pid = process_with(hosts, rank / 2, "RANK=" + std::to_string(rank));
      if (pid > 0) ::kill(pid, SIGKILL);
    });
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const json document = json::parse(read_text(file));
    REQUIRE(document["summary"]["deaths"].size() == 1);
    CHECK(document["summary"]["deaths"][0]["ranks"] == json{rank});
    check_against_reference(place, words, document);
  }
}

TEST_CASE("elastic: a host is lost") {
  const Hosts hosts(2);
  const Workplace place;
  const std::string file = place.file("elastic.json");
  const Words words =
      Words{"--width",        "256",         "--batch", "8",      "--steps",   kSteps,
            "--reproducible", "--log-every", "0",       "--data", place.data()};
  const ProgramResult result =
      train_on_hosts(hosts, file, words, [&] { hosts.signal(1, SIGKILL); });
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(read_text(file));
  std::vector<int> dead;
  for (const json& death : document["summary"]["deaths"]) {
    for (const int rank : death["ranks"]) dead.push_back(rank);
  }
  CHECK(dead == std::vector<int>{2, 3});
  CHECK(document["summary"]["ranks"] == 2);
  if (document["summary"]["deaths"].size() == 1) check_against_reference(place, words, document);
}

TEST_CASE(
    "elastic: a network splits, the launcher reaches both parts, and the larger one goes on") {
  // Of two parts of one size that with rank 0.
  for (const int cut : {1, 0}) {
    INFO("host " << cut << " is cut off");
    const Hosts hosts(2);
    const Workplace place;
    const std::string file = place.file("elastic.json");
    const Words words =
        Words{"--width",        "256",         "--batch", "8",      "--steps",   kSteps,
              "--reproducible", "--log-every", "0",       "--data", place.data()};
    setenv("RONDO_HOST_TIMEOUT", "2", 1);
    const ProgramResult result = train_on_hosts(hosts, file, words, [&] { hosts.cut(cut); });
    unsetenv("RONDO_HOST_TIMEOUT");
    INFO(result.err);
    CHECK(result.exit_code == 0);
    for (const char* rank : {"rank 2", "rank 3"}) {
      CHECK(result.err.find(std::string(rank) +
                            std::string(" was left out by the others (code 75)")) !=
            std::string::npos);
    }
    const json document = json::parse(read_text(file));
    REQUIRE(document.contains("summary"));
    CHECK(document["summary"]["deaths"][0]["ranks"] == json{2, 3});
    CHECK(document["summary"]["ranks"] == 2);
  }
}

// As a firewall does between two hosts that both live. A connection says nothing about the rank at its
// other end: neither rank may take the other one for dead, and go on alone.
TEST_CASE("elastic: all connections between two ranks are reset, and both go on together") {
  if (!Hosts::can_reset()) return;
  const Hosts hosts(2);
  const Workplace place;
  const std::string file = place.file("elastic.json");
  const Words words =
      Words{"--width",        "256",         "--batch", "8",      "--steps",   kSteps,
            "--reproducible", "--log-every", "0",       "--data", place.data()};
  int reset = 0;
  const ProgramResult result = train_on_hosts(
      hosts, file, words, [&] { reset = hosts.reset(0, 1); }, "h0:1,h1:1");
  INFO(result.err);
  CHECK(reset > 0);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(read_text(file));
  CHECK(document["summary"]["ranks"] == 2);
  CHECK(result.err.find(" died:") == std::string::npos);
  REQUIRE(document["summary"]["deaths"].size() == 1);
  CHECK(document["summary"]["deaths"][0]["ranks"] == json::array());
  CHECK(document["summary"]["deaths"][0]["ranks_left"] == 2);
  // Nothing was lost: the bits are those of a run without a fault.
  const json whole = place.train_on(words + Words{"--ranks", "2"});
  CHECK(losses_of(document) == losses_of(whole));
  CHECK(document["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
}

TEST_CASE("elastic: after resets at random moments both ranks go on, or none does") {
  if (!Hosts::can_reset()) return;
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const Hosts hosts(2);
  const Workplace place;
  const std::string file = place.file("elastic.json");
  const Words words =
      Words{"--width",        "256",         "--batch", "8",      "--steps",   kSteps,
            "--reproducible", "--log-every", "0",       "--data", place.data()};
  int reset = 0;
  const ProgramResult result = train_on_hosts(
      hosts, file, words,
      [&] {
        for (int i = 0; i < 4; ++i) {
          reset += hosts.reset(i % 2, 1 - i % 2);
          // The moment that is tried.
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
        }
      },
      "h0:1,h1:1");
  INFO(result.err);
  CHECK(reset > 0);
  CHECK(result.err.find(" died:") == std::string::npos);
  if (result.exit_code != 0) {
    CHECK(result.err.find("connection") != std::string::npos);
    return;
  }
  const json document = json::parse(read_text(file));
  CHECK(document["summary"]["ranks"] == 2);
  for (const json& death : document["summary"]["deaths"]) {
    CHECK(death["ranks"] == json::array());
    CHECK(death["ranks_left"] == 2);
  }
  const json whole = place.train_on(words + Words{"--ranks", "2"});
  CHECK(losses_of(document) == losses_of(whole));
}

TEST_CASE("elastic: of two ranks whose network is cut none goes on alone") {
  const Hosts hosts(2);
  const Workplace place;
  const std::string file = place.file("elastic.json");
  const Words words = Words{"--width", "256",         "--batch", "8",      "--steps",
                            "100000",  "--log-every", "0",       "--data", place.data()};
  setenv("RONDO_HOST_TIMEOUT", "2", 1);
  const ProgramResult result = train_on_hosts(
      hosts, file, words, [&] { hosts.cut(1); }, "h0:1,h1:1");
  unsetenv("RONDO_HOST_TIMEOUT");
  INFO(result.err);
  CHECK(result.exit_code != 0);
  CHECK(result.err.find("too few to continue") != std::string::npos);
  CHECK(result.err.find("goes on after step") == std::string::npos);
}

}  // namespace
}  // namespace rondo::trainer
