// rondo-train --elastic: ranks die at chosen and at many moments, and from there on the losses are
// those of a run that had so many ranks, bit for bit.
#include "trainer/step/elastic.hpp"

#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "rondo/communicator.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/crash.hpp"
#include "tests/trainer/training_rig.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/layers/host/matmul.hpp"
#include "trainer/step/setup.hpp"
#include "trainer/train.hpp"

namespace rondo::trainer {
namespace {

using rondo::testing::kSanitized;
using rondo::testing::RankResult;
using namespace testing;  // NOLINT: the trainer's

/// A rank dies, by a signal, this long after it has begun to read its batch number `batch`, from 1.
struct Victim {
  int rank;
  uint64_t batch;
  int64_t delay_us = 0;
};

/// Data whose reader dies. For loaders without threads.
class Deadly final : public Dataset {
 public:
  Deadly(const Dataset& data, std::optional<Victim> victim, uint64_t batch)
      : Dataset(data.facts()), data_(data), victim_(victim), batch_(batch) {}

  Status read(uint64_t index, const Slot& slot) const override {
    if (victim_ && read_++ == (victim_->batch - 1) * batch_) die();
    return data_.read(index, slot);
  }

 private:
  void die() const {
    if (victim_->delay_us == 0) raise(SIGKILL);
    std::signal(SIGALRM, SIG_DFL);
    const itimerval timer{.it_interval = {},
                          .it_value = {.tv_sec = victim_->delay_us / 1'000'000,
                                       .tv_usec = victim_->delay_us % 1'000'000}};
    setitimer(ITIMER_REAL, &timer, nullptr);
  }

  const Dataset& data_;
  const std::optional<Victim> victim_;
  const uint64_t batch_;
  mutable uint64_t read_ = 0;
};

TrainOptions parse(Words words) {
  words.insert(words.begin(), "rondo-train");
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const Parsed parsed = parse_options(static_cast<int>(arguments.size()), arguments.data());
  rondo::testing::expect(parsed.options.has_value(), "options");
  return *parsed.options;
}

/// `begins` runs in every rank before it trains.
std::vector<RankResult> train_forks(const Words& words, int ranks,
                                    const std::vector<Victim>& victims,
                                    const std::function<void(int rank)>& begins = {}) {
  const rondo::testing::TempDirectory meeting;
  return rondo::testing::run_ranks(
      rondo::testing::How::kForks, ranks,
      [&](int rank) {
        const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(nowhere, STDOUT_FILENO);
        const TrainOptions options = parse(words + "--workers 0 --elastic"_words);
        const auto whole = open_data(options, options.data, 0);
        rondo::testing::expect(whole.ok(), whole.status().message());
        std::optional<Victim> mine;
        for (const Victim& victim : victims) {
          if (victim.rank == rank) mine = victim;
        }
        const Deadly data(**whole, mine, options.batch);
        std::unique_ptr<Dataset> validation;
        if (!options.validation.empty()) {
          validation = open_data(options, options.validation, 0).value();
        }
        Config config;
        config.rendezvous = meeting.path();
        config.rank = rank;
        config.world_size = ranks;
        config.reproducible = options.reproducible;
        auto communicator = Communicator::create(config);
        rondo::testing::expect(communicator.ok(), communicator.status().message());
        if (begins) begins(rank);
        const std::atomic<bool> stop{false};
        const Status status = train(options, data, validation.get(), *communicator, stop);
        rondo::testing::expect(status.ok(), status.to_string());
      },
      std::chrono::seconds{240});
}

/// The victims have been killed, the others have ended well.
void require_survived(const std::vector<RankResult>& results, const std::vector<int>& victims) {
  for (const RankResult& result : results) {
    const bool dies = std::count(victims.begin(), victims.end(), result.rank) > 0;
    INFO("rank " << result.rank << ": signal " << result.signal << ", " << result.message);
    CHECK((result.signal != 0) == dies);
    if (!dies) REQUIRE(result.ok);
  }
}

/// A run that had from the beginning, and from each death on, as many ranks as `document` says: one
/// checkpoint is resumed by the next number of ranks. Its document has the steps of all parts. Runs
/// that lost as many ranks after the same steps have one reference.
const json& reference(const Workplace& place, const Words& words, int ranks, const json& document) {
  // The ranks that died and survived had this process's products; the program would choose others.
  setenv("OPENBLAS_CORETYPE", matmul_core(), 0);
  const std::string last = *(std::find(words.begin(), words.end(), "--steps") + 1);
  std::vector<std::pair<std::string, int>> parts;  // the last step, and how many ranks
  int now = ranks;
  for (const json& death : document["summary"]["deaths"]) {
    if (death["after_step"] > 0) parts.emplace_back(death["after_step"].dump(), now);
    now = death["ranks_left"];
  }
  parts.emplace_back(last, now);
  static std::map<std::string, json> made;
  json& whole = made[json{words, parts}.dump()];
  if (!whole.is_null()) return whole;
  whole = {{"steps", json::array()}, {"validation", json::array()}};
  const std::string folder = place.file("reference");
  std::filesystem::remove_all(folder);
  for (const auto& [steps, count] : parts) {
    const json part =
        place.train_on(with(words, "--steps", steps) + "--resume --checkpoint-dir"_words + folder +
                       "--ranks" + count);
    for (const json& step : part["steps"]) whole["steps"].push_back(step);
    for (const json& v : part.value("validation", json::array())) whole["validation"].push_back(v);
    whole["summary"] = part["summary"];
  }
  return whole;
}

void check_same(const json& survived, const json& whole) {
  REQUIRE(losses_of(survived) == losses_of(whole));
  CHECK(hash_of(survived) == hash_of(whole));
  for (size_t s = 0; s < survived["steps"].size(); ++s) {
    CHECK(survived["steps"][s]["step"] == s + 1);
    CHECK(survived["steps"][s]["epoch"] == whole["steps"][s]["epoch"]);
    CHECK(survived["steps"][s]["lr"] == whole["steps"][s]["lr"]);
  }
}

/// How many to try; RONDO_TEST_MOMENTS for more.
int moments() {
  const char* const text = std::getenv("RONDO_TEST_MOMENTS");
  return text != nullptr ? std::atoi(text) : kSanitized ? 4 : 8;
}

struct Scene {
  Words words;
  int ranks;
  std::vector<Victim> victims;
};

struct Played {
  json document, reference;
};

/// Plays it, and compares it with its reference.
Played play(const Workplace& place, const Scene& scene) {
  const Words words = scene.words + Words{"--reproducible"};
  const std::string file = place.file("elastic.json");
  std::vector<int> dead;
  for (const Victim& victim : scene.victims) dead.push_back(victim.rank);
  require_survived(train_forks(words + "--json"_words + file, scene.ranks, scene.victims), dead);
  json document = read_json(file);
  std::vector<int> said;
  for (const json& death : document["summary"]["deaths"]) {
    for (const int rank : death["ranks"]) said.push_back(rank);
  }
  std::sort(said.begin(), said.end());
  std::sort(dead.begin(), dead.end());
  CHECK(said == dead);
  CHECK(document["summary"]["ranks"] == scene.ranks - static_cast<int>(dead.size()));
  const json whole = reference(place, words, scene.ranks, document);
  check_same(document, whole);
  return {document, whole};
}

TEST_CASE("elastic: a rank dies before its batch, rank 0 too, and the others make the step again") {
  const Workplace place;
  const Words words = kNano + "--dropout 0.1 --data"_words + place.short_data() + "--steps 9"_words;
  for (const int rank : {2, 1, 0}) {
    INFO("rank " << rank);
    const json document = play(place, {words, 3, {{rank, 4}}}).document;
    CHECK(document["summary"]["deaths"][0]["after_step"] == 3);
    CHECK(document["summary"]["deaths"][0]["ranks_left"] == 2);
  }
}

TEST_CASE("elastic: a rank dies at any moment of a step") {
  const Workplace place;
  const Words words =
      kNano + "--data"_words + place.data() + "--steps 40 --bucket-cap-mb 0.02"_words;
  const int count = moments();
  for (int i = 0; i < count; ++i) {
    const int64_t delay = 50 + 7000 * i / count;
    INFO("after " << delay << " us");
    play(place, {words, 3, {{i % 3, 3, delay}}});
  }
}

TEST_CASE("elastic: a rank dies while the others agree on where to go on") {
  const Workplace place;
  const Words words = kNano + "--data"_words + place.data() + "--steps 40"_words;
  const int count = moments();
  for (int i = 0; i < count; ++i) {
    const int64_t delay = 200 + 40'000 * i / count;
    INFO("after " << delay << " us");
    // The first of the others, which leads them, or the last.
    play(place, {words, 4, {{1, 3}, {i % 2 == 0 ? 0 : 3, 3, delay}}});
  }
}

TEST_CASE("elastic: two ranks at once, and one after the other down to one") {
  const Workplace place;
  const Words words = kNano + "--data"_words + place.short_data() + "--steps 8"_words;
  play(place, {words, 4, {{0, 3}, {2, 3}}});
  const json document = play(place, {words, 4, {{0, 2}, {3, 4}, {1, 7}}}).document;
  CHECK(document["summary"]["deaths"].size() == 3);
}

TEST_CASE("elastic: every kind of state goes on") {
  const Workplace place;
  write_images(place.file("images"), 40);
  const Words pictures = kCnn + "--data"_words + place.file("images") + "--validation" +
                         place.file("images") + "--steps 7"_words;
  const Words scaled = "--width 96 --batch 4 --dtype fp16 --optimizer adamw --lr 0.1 --data"_words +
                       place.short_data() + "--steps 7"_words;
  const std::vector<Words> runs = {
      scaled, pictures, pictures + Words{"--sync-batch-norm"},
      kNano + "--accum 2 --clip 0.5 --dtype bf16 --lr-scale linear --base-batch 4 --data"_words +
          place.short_data() + "--steps 7"_words,
      kNano + "--dtype fp64 --no-overlap --data"_words + place.short_data() + "--steps 7"_words};
  for (const Words& words : runs) {
    for (const int rank : {0, 2}) {
      INFO(words[1] << ", rank " << rank);
      const auto [document, whole] = play(place, {words, 3, {{rank, 4}}});
      if (words[1] != "cnn") continue;
      REQUIRE(document["validation"].size() == 1);
      CHECK(document["validation"][0] == whole["validation"].back());
    }
  }
}

TEST_CASE("elastic: rank 0 dies while it saves a checkpoint, another saves it again") {
  const Workplace place;
  const Words words =
      kNano + "--data"_words + place.short_data() + "--steps 4 --reproducible"_words;
  const std::string folder = place.file("saved"), file = place.file("elastic.json");
  size_t deaths = 0;
  for (size_t nth = 0;; nth += 5) {
    INFO("change " << nth);
    std::filesystem::remove_all(folder);
    const std::vector<RankResult> results =
        train_forks(words + "--json"_words + file + "--checkpoint-dir" + folder +
                        "--checkpoint-every 2 --checkpoint-keep 9"_words,
                    3, {}, [&](int rank) {
                      if (rank == 0) die_before_change(nth);
                    });
    if (results[0].signal == 0) break;
    ++deaths;
    require_survived(results, {0});
    const json document = read_json(file);
    check_same(document, reference(place, words, 3, document));
    // All checkpoints are there, and nothing else: also the one that rank 0 died in, also the last.
    CHECK(names_in(folder) ==
          std::set<std::string>{".lock", "latest", "step-00000002", "step-00000004"});
    CHECK(read_text(folder + "/latest") == "step-00000004\n");
  }
  CHECK(deaths >= 6);
}

TEST_CASE("elastic: with --zero 1 the run goes on from the last checkpoint") {
  const Workplace place;
  const std::string folder = place.file("saved"), file = place.file("elastic.json");
  const Words words = kNano + "--data"_words + place.short_data() +
                      "--steps 9 --zero 1 --reproducible --validation"_words + place.tiny_data() +
                      "--validate-every 3"_words;
  for (const int rank : {0, 1}) {
    std::filesystem::remove_all(folder);
    require_survived(train_forks(words + "--json"_words + file + "--checkpoint-dir" + folder +
                                     "--checkpoint-every 3"_words,
                                 3, {{rank, 6}}),
                     {rank});
    const json document = read_json(file);
    CHECK(document["summary"]["deaths"][0]["after_step"] == 3);
    const json whole = reference(place, words, 3, document);
    check_same(document, whole);
    REQUIRE(document["validation"].size() == 3);
    for (size_t v = 0; v < 3; ++v) CHECK(document["validation"][v]["step"] == 3 * (v + 1));
    CHECK(document["validation"][2] == whole["validation"].back());
  }
  // Before the first checkpoint: from the beginning.
  std::filesystem::remove_all(folder);
  require_survived(
      train_forks(words + "--json"_words + file + "--checkpoint-dir" + folder, 3, {{0, 2}}), {0});
  const json document = read_json(file);
  CHECK(document["summary"]["deaths"][0]["after_step"] == 0);
  check_same(document, reference(place, words, 3, document));
}

TEST_CASE("elastic: fewer ranks than --min-ranks end the run, and so does what is no death") {
  const Workplace place;
  const Words words = kNano + "--data"_words + place.short_data() + "--steps 6 --json"_words +
                      place.file("elastic.json");
  const auto results = train_forks(words + "--min-ranks 2"_words, 3, {{2, 2}, {1, 4}});
  CHECK_THAT(results[0].message, contains("1 of the ranks are left, fewer than --min-ranks 2"));
  CHECK_THAT(read_json(place.file("elastic.json"))["error"].get<std::string>(),
             contains("--min-ranks 2"));
  // The loss is no number: all ranks find that.
  const auto failed = train_forks(words + "--lr 1e5 --optimizer sgd"_words, 2, {});
  for (const RankResult& result : failed) CHECK_THAT(result.message, contains("the loss became"));
}

/// The process of each rank that `launcher` has started.
std::map<int, pid_t> ranks_of(pid_t launcher) {
  std::map<int, pid_t> ranks;
  const std::string process = "/proc/" + std::to_string(launcher);
  std::istringstream children(
      read_text(process + "/task/" + std::to_string(launcher) + "/children"));
  for (pid_t child; children >> child;) {
    for (const std::string& variable : variables_of(child, "RANK=")) {
      ranks[std::stoi(variable.substr(5))] = child;
    }
  }
  return ranks;
}

TEST_CASE("elastic: without a death a run begins again at most three times in one step") {
  Config config;
  config.rank = 0;
  config.world_size = 1;
  Communicator communicator = std::move(*Communicator::create(config));
  Survivors survivors(1);
  const Status reset(Code::kPeerDied, "the connection was reset");
  // A run that takes steps begins again as often as it must.
  for (uint64_t step = 1; step <= 8; ++step) {
    REQUIRE(survivors.shrink(communicator, reset, 1).ok());
    REQUIRE(survivors.go_on(step, 1, false).ok());
  }
  const auto is_over = [](const Status& status) {
    return status.code() == Code::kUnavailable &&
           status.message().find(" times in one step: check the network") != std::string::npos;
  };
  // The ranks lose each other again while they agree on the state, before go_on().
  Survivors disturbed = survivors;
  for (int loss = 1; loss <= 6; ++loss) REQUIRE(disturbed.shrink(communicator, reset, 1).ok());
  CHECK(is_over(disturbed.shrink(communicator, reset, 1)));
  // Losses before and after go_on() are of one step.
  for (int loss = 1; loss <= 2; ++loss) REQUIRE(survivors.shrink(communicator, reset, 1).ok());
  REQUIRE(survivors.go_on(9, 1, false).ok());
  REQUIRE(survivors.shrink(communicator, reset, 1).ok());
  REQUIRE(survivors.go_on(9, 1, false).ok());
  REQUIRE(survivors.shrink(communicator, reset, 1).ok());
  CHECK(is_over(survivors.go_on(9, 1, false)));
}

TEST_CASE("elastic: rondo-train starts its ranks so that they survive, and says who died") {
  const Workplace place;
  const std::string file = place.file("elastic.json");
  const Words words = "--width 512 --batch 64 --ranks 3 --steps 400 --data"_words + place.data() +
                      "--json" + file + "--log-every 400 --elastic"_words;
  std::thread killer;
  const ProgramResult result = rondo::testing::run_program(
      Words{RONDO_TRAIN} + words, kNoLauncher, std::chrono::seconds{120}, [&](pid_t pid) {
        killer = std::thread([pid, file] {
          for (const auto& [rank, step] : {std::pair{0, 3}, std::pair{2, 9}}) {
            if (!await_step(file, static_cast<uint64_t>(step))) return;
            const auto ranks = ranks_of(pid);
            if (ranks.contains(rank)) ::kill(ranks.at(rank), SIGKILL);
          }
        });
      });
  killer.join();
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  for (const char* line :
       {"rank 0 was killed by signal 9 (Killed); the others go on",
        "rank 2 was killed by signal 9 (Killed); the others go on",
        "rank 0 died: 2 ranks go on after step ", "rank 2 died: 1 rank goes on after step ",
        "; there ranks 0 to 1 are the run's ranks 1, 2)"}) {
    CHECK_THAT(result.err, contains(line));
  }
  const json document = read_json(file);
  CHECK(document["steps"].size() == 400);
  REQUIRE(document["summary"]["deaths"].size() == 2);
  CHECK(document["summary"]["deaths"][0]["ranks"] == json{0});
  CHECK(document["summary"]["deaths"][1]["ranks"] == json{2});
  CHECK(document["summary"]["deaths"][1]["ranks_left"] == 1);
}

}  // namespace
}  // namespace rondo::trainer
