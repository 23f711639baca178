// rondo-train --elastic on two hosts: a rank, or a host, is lost, and the others go on.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/harness/hosts.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer {
namespace {

using rondo::testing::Hosts;
using namespace testing;  // NOLINT: the trainer's

/// Two hosts, and what rondo-train does on them.
struct Scene {
  Hosts hosts{2};
  Workplace place;
  // A step takes a millisecond, under sanitizers ten: enough of them for the death to come before
  // the end.
  Words words = "--width 256 --batch 8 --reproducible --log-every 0 --data"_words + place.data() +
                "--steps" + (rondo::testing::kSanitized ? 150 : 1000);
  ProgramResult result;

  /// Runs it under rondo-run; `loses` is called after the fifth step.
  void play(const std::function<void()>& loses, const std::string& ranks) {
    std::string agent;
    for (const std::string& word : hosts.agent()) agent += word + " ";
    const std::string file = place.file("elastic.json");
    std::thread thread;
    result = rondo::testing::run_program(
        Words{RONDO_RUN, "--elastic", "--agent", agent, "--hosts", ranks, "--", RONDO_TRAIN} +
            "--elastic --json"_words + file + words,
        kNoLauncher, std::chrono::seconds{240}, [&](pid_t) {
          thread = std::thread([&] {
            if (await_step(file, 5)) loses();
          });
        });
    thread.join();
  }
  /// The same; it must succeed.
  json survive(const std::function<void()>& loses, const std::string& ranks = "h0:2,h1:2") {
    play(loses, ranks);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return document();
  }
  json document() const { return read_json(place.file("elastic.json")); }
  /// A run that loses nothing.
  json whole(int ranks) const { return place.train_on(words + "--ranks" + ranks); }

  /// `document` lost ranks once: it did what a run did that had so many ranks from there on.
  void check_against_reference(const json& document) const {
    const json& death = document["summary"]["deaths"][0];
    const Words saves = words + "--resume --checkpoint-dir"_words + place.file("reference");
    const json first =
        place.train_on(with(saves, "--steps", death["after_step"].dump()) + "--ranks 4"_words);
    const json rest = place.train_on(saves + "--ranks" + death["ranks_left"].dump());
    std::vector<double> losses = losses_of(first);
    for (const double loss : losses_of(rest)) losses.push_back(loss);
    CHECK(losses_of(document) == losses);
    CHECK(hash_of(document) == hash_of(rest));
  }
};

/// With so short a time a host that cannot be reached is given up.
struct ShortTimeout {
  ShortTimeout() { setenv("RONDO_HOST_TIMEOUT", "2", 1); }
  ~ShortTimeout() { unsetenv("RONDO_HOST_TIMEOUT"); }
};

TEST_CASE("elastic: a rank of either host is killed") {
  for (const int rank : {0, 3}) {
    INFO("rank " << rank);
    Scene scene;
    const json document = scene.survive([&] {
      for (const pid_t pid : scene.hosts.processes(rank / 2)) {
        if (variables_of(pid, "RANK=") == Words{"RANK=" + std::to_string(rank)}) {
          ::kill(pid, SIGKILL);
        }
      }
    });
    REQUIRE(document["summary"]["deaths"].size() == 1);
    CHECK(document["summary"]["deaths"][0]["ranks"] == json{rank});
    scene.check_against_reference(document);
  }
}

TEST_CASE("elastic: a host is lost") {
  Scene scene;
  const json document = scene.survive([&] { scene.hosts.signal(1, SIGKILL); });
  const json& deaths = document["summary"]["deaths"];
  json dead = json::array();
  for (const json& death : deaths)
    dead.insert(dead.end(), death["ranks"].begin(), death["ranks"].end());
  CHECK(dead == json{2, 3});
  CHECK(document["summary"]["ranks"] == 2);
  if (deaths.size() == 1) scene.check_against_reference(document);
}

TEST_CASE(
    "elastic: a network splits, the launcher reaches both parts, and the larger one goes on") {
  // Of two parts of one size that with rank 0.
  for (const int cut : {1, 0}) {
    INFO("host " << cut << " is cut off");
    const ShortTimeout timeout;
    Scene scene;
    const json document = scene.survive([&] { scene.hosts.cut(cut); });
    for (const std::string rank : {"rank 2", "rank 3"}) {
      CHECK_THAT(scene.result.err, contains(rank + " was left out by the others (code 75)"));
    }
    REQUIRE(document.contains("summary"));
    CHECK(document["summary"]["deaths"][0]["ranks"] == json{2, 3});
    CHECK(document["summary"]["ranks"] == 2);
  }
}

// As a firewall does between two hosts that both live. A connection says nothing about the rank at its
// other end: neither rank may take the other one for dead, and go on alone.
TEST_CASE("elastic: all connections between two ranks are reset, and both go on together") {
  if (!Hosts::can_reset()) return;
  Scene scene;
  int reset = 0;
  const json document = scene.survive([&] { reset = scene.hosts.reset(0, 1); }, "h0:1,h1:1");
  CHECK(reset > 0);
  CHECK(document["summary"]["ranks"] == 2);
  CHECK_THAT(scene.result.err, !contains(" died:"));
  REQUIRE(document["summary"]["deaths"].size() == 1);
  CHECK(document["summary"]["deaths"][0]["ranks"] == json::array());
  CHECK(document["summary"]["deaths"][0]["ranks_left"] == 2);
  // Nothing was lost: the bits are those of a run without a fault.
  const json whole = scene.whole(2);
  CHECK(losses_of(document) == losses_of(whole));
  CHECK(hash_of(document) == hash_of(whole));
}

TEST_CASE("elastic: after resets at random moments both ranks go on, or none does") {
  if (!Hosts::can_reset()) return;
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  Scene scene;
  int reset = 0;
  scene.play(
      [&] {
        for (int i = 0; i < 4; ++i) {
          reset += scene.hosts.reset(i % 2, 1 - i % 2);
          // The moment that is tried.
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
        }
      },
      "h0:1,h1:1");
  INFO(scene.result.err);
  CHECK(reset > 0);
  CHECK_THAT(scene.result.err, !contains(" died:"));
  if (scene.result.exit_code != 0) {
    CHECK_THAT(scene.result.err, contains("connection"));
    return;
  }
  const json document = scene.document();
  CHECK(document["summary"]["ranks"] == 2);
  for (const json& death : document["summary"]["deaths"]) {
    CHECK(death["ranks"] == json::array());
    CHECK(death["ranks_left"] == 2);
  }
  CHECK(losses_of(document) == losses_of(scene.whole(2)));
}

TEST_CASE("elastic: of two ranks whose network is cut none goes on alone") {
  const ShortTimeout timeout;
  Scene scene;
  scene.words = with(scene.words, "--steps", "100000");
  scene.play([&] { scene.hosts.cut(1); }, "h0:1,h1:1");
  INFO(scene.result.err);
  CHECK(scene.result.exit_code != 0);
  CHECK_THAT(scene.result.err, contains("too few to continue"));
  CHECK_THAT(scene.result.err, !contains("goes on after step"));
}

}  // namespace
}  // namespace rondo::trainer
