// rondo-train --resume, with ranks as processes: the same bits as without interruption, another
// number of ranks, and files that are another run's.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"
#include "trainer/checkpoint/checkpoint.hpp"

using rondo::testing::kSanitized;
using rondo::testing::ProgramResult;
using namespace rondo::trainer::testing;

TEST_CASE(
    "resume: the same bits as without interruption, in the middle of an epoch and behind it") {
  const Workplace place;
  write_images(place.file("images"), 40);
  std::vector<Words> runs;
  runs.push_back(kNano + Words{"--dropout", "0.1", "--data", place.short_data()});
  runs.push_back(kNano + Words{"--beta1", "0.8", "--beta2", "0.95", "--data", place.short_data()});
  runs.push_back(kNano +
                 Words{"--layer-drop", "0.4", "--accum", "2", "--data", place.short_data()});
  // Only an evaluation sees the running statistics.
  const Words pictures =
      kCnn + Words{"--data", place.file("images"), "--validation", place.file("images")};
  runs.push_back(pictures + Words{"--sync-batch-norm"});
  runs.push_back(pictures);
  runs.push_back(pictures + Words{"--no-broadcast-buffers"});
  // Its second step overflows, so that the scale is not the first one any more.
  runs.push_back({"--width", "96", "--batch", "4", "--dtype", "fp16", "--optimizer", "adamw",
                  "--lr", "0.1", "--data", place.short_data()});
  runs.push_back({"--width", "32", "--batch", "4", "--dtype", "fp16", "--lr-decay", "cosine",
                  "--warmup", "3", "--clip", "0.5", "--data", place.short_data()});
  int number = 0;
  for (const Words& run : runs) {
    const Words common = run + Words{"--ranks", "3"};
    const json whole = place.train_on(common + Words{"--steps", "12"});
    for (const std::string stop : {"3", "7"}) {
      const std::string folder = place.file("checkpoints" + std::to_string(number++));
      if (kSanitized && number % 4 > 1) continue;  // in turns, one of the two
      // A decay ends where the run ends, so the first part is a run that is cut off.
      (void)place.train_on(common + Words{"--steps", "12", "--checkpoint-dir", folder,
                                          "--checkpoint-every", stop, "--checkpoint-keep", "9"});
      const std::string name = "step-0000000" + stop;
      const json state = json::parse(read_text(folder + "/" + name + "/state.json"));
      CHECK(state["schedule"]["base_rate"] == state["options"]["lr"]);
      CHECK(state["schedule"]["last_step"] == 12);
      for (const json& bucket : state["buckets"]) CHECK(bucket["algorithm"] != "");
      REQUIRE(std::filesystem::exists(folder + "/" + name));
      std::ofstream(folder + "/latest") << name << "\n";
      const json rest =
          place.train_on(common + Words{"--steps", "12", "--checkpoint-dir", folder, "--resume"});
      INFO(run[1] << ", stopped at " << stop);
      CHECK(rest["steps"].size() == 12 - std::stoul(stop));
      CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
      CHECK(rest["steps"].back()["loss"] == whole["steps"].back()["loss"]);
      CHECK(rest.value("validation", json()) == whole.value("validation", json()));
      for (size_t s = 0; s < rest["steps"].size(); ++s) {
        const json& step = whole["steps"][s + std::stoul(stop)];
        CHECK(rest["steps"][s].value("skipped", false) == step.value("skipped", false));
      }
    }
  }
}

TEST_CASE("resume: ranks with data of their own go on where each was") {
  const Workplace place;
  write_images(place.file("images0"), 9);
  write_images(place.file("images1"), 14);
  const std::string folder = place.file("checkpoints");
  const Words common =
      kCnn + Words{"--data", place.file("images{rank}"), "--ranks", "2", "--join", "--epochs", "2"};
  const json whole = place.train_on(common);
  (void)place.train_on(common + Words{"--checkpoint-dir", folder, "--checkpoint-every", "4",
                                      "--checkpoint-keep", "9"});
  std::ofstream(folder + "/latest") << "step-00000004\n";  // rank 0 has ended, rank 1 has not
  const json rest = place.train_on(common + Words{"--checkpoint-dir", folder, "--resume"});
  CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
  CHECK(rest["steps"].size() == whole["steps"].size() - 4);
}

TEST_CASE("resume: data of a rank's own that are others, or everybody's, are refused") {
  const Workplace place;
  for (const char* name : {"a0", "a1", "b0", "b1"}) {
    std::ofstream(place.file(name)) << std::string(3000, name[0]) << name;
  }
  std::filesystem::copy_file(place.file("a0"), place.file("b0"),
                             std::filesystem::copy_options::overwrite_existing);
  const Words common = {"--width", "32", "--batch", "4", "--ranks", "2", "--log-every", "0"};
  for (const auto& [then, now] :
       {std::pair("a{rank}", "b{rank}"), {"a{rank}", "a0"}, {"a0", "a{rank}"}}) {
    INFO(then << ", then " << now);
    const Words saves =
        common + Words{"--checkpoint-dir", place.file(std::string("of ") + then + now)};
    (void)place.train_on(saves + Words{"--steps", "2", "--data", place.file(then)});
    const Words rest = saves + Words{"--resume", "--steps", "4"};
    const ProgramResult other = run(rest + Words{"--data", place.file(now)});
    INFO(other.err);
    CHECK(other.exit_code != 0);
    CHECK(other.err.find("its position would mean nothing") != std::string::npos);
    CHECK(run(rest + Words{"--data", place.file(then)}).exit_code == 0);
  }
}

TEST_CASE("resume: by epochs the schedule ends where it would have") {
  const Workplace place;
  const std::string decay = GENERATE("cosine", "linear");
  const Words common =
      kNano + Words{"--data", place.short_data(), "--epochs", "2",          "--lr-decay",
                    decay,    "--ranks",          "2",        "--drop-last"};
  const std::string folder = place.file("checkpoints");
  const json whole = place.train_on(common);
  const size_t steps = whole["steps"].size();
  (void)place.train_on(common + Words{"--checkpoint-dir", folder, "--checkpoint-every", "3",
                                      "--checkpoint-keep", "99"});
  std::ofstream(folder + "/latest") << "step-00000003\n";
  const json rest = place.train_on(common + Words{"--checkpoint-dir", folder, "--resume"});
  CHECK(rest["steps"].size() == steps - 3);
  CHECK(rest["steps"].back()["lr"] == whole["steps"].back()["lr"]);
  CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
}

// The global batch is ranks x --batch x --accum: the same one gives the same losses but for their last
// bits, whatever it is made of.
TEST_CASE("resume: with the same global batch the losses go on, with another one it is said so") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words common = kNano + Words{"--dtype", "fp64", "--data", place.data()};
  const json whole = place.train_on(common + Words{"--steps", "6", "--ranks", "2"});
  const Words saves = common + Words{"--checkpoint-dir", folder};
  (void)place.train_on(saves + Words{"--steps", "4", "--ranks", "2"});
  struct Rest {
    std::string ranks, batch, accum;
    bool same_losses;
    std::vector<std::string> said;
  };
  const std::string made = "made by 2 ranks with --batch 2";
  const std::vector<Rest> rests = {
      {"2", "2", "1", true, {}},
      {"1", "4", "1", true, {made + ", this run has 1 rank with --batch 4", "bits will differ"}},
      {"2", "1", "2", true, {made + ", this run has 2 ranks with --batch 1 --accum 2"}},
      {"1",
       "2",
       "1",
       false,
       {made + ", a global batch of 4; this run has 1 rank with --batch 2, a global batch of 2"}},
      {"2",
       "3",
       "1",
       false,
       {made, "2 ranks with --batch 3, a global batch of 6", "with the number of ranks is 4"}}};
  for (const Rest& rest : rests) {
    INFO(rest.ranks << " ranks, batch " << rest.batch << ", accum " << rest.accum);
    std::ofstream(folder + "/latest") << "step-00000004\n";
    std::filesystem::remove_all(folder + "/step-00000006");
    const ProgramResult got = run(with(saves, "--batch", rest.batch) +
                                  Words{"--ranks", rest.ranks, "--accum", rest.accum, "--steps",
                                        "6", "--resume", "--json", place.file("rest.json")});
    INFO(got.err);
    REQUIRE(got.exit_code == 0);
    CHECK((got.err.find("the checkpoint was made by") != std::string::npos) == !rest.said.empty());
    for (const std::string& part : rest.said) CHECK(got.err.find(part) != std::string::npos);
    CHECK((got.err.find("the losses will differ") != std::string::npos) == !rest.same_losses);
    CHECK(got.err.find("resuming with other options") == std::string::npos);
    const auto losses = losses_of(json::parse(read_text(place.file("rest.json"))));
    REQUIRE(losses.size() == 2);
    if (rest.same_losses) CHECK(losses[1] == Approx(losses_of(whole)[5]).epsilon(1e-9));
  }
}

TEST_CASE("resume: with other buckets it is said that bits differ, unless they are reproducible") {
  const Workplace place;
  for (const bool reproducible : {false, true}) {
    Words common = {"--width", "32", "--ranks", "3", "--data", place.data()};
    if (reproducible) common.push_back("--reproducible");
    const std::string folder = place.file(reproducible ? "same" : "other");
    const json whole = place.train_on(common + Words{"--steps", "2"});
    common = common + Words{"--checkpoint-dir", folder};
    (void)place.train_on(common + Words{"--steps", "1"});
    const ProgramResult other = run(common + Words{"--steps", "2", "--resume", "--bucket-cap-mb",
                                                   "0.01", "--json", place.file("other.json")});
    INFO(other.err);
    REQUIRE(other.exit_code == 0);
    CHECK((other.err.find("with another bucket layout") != std::string::npos) != reproducible);
    CHECK((other.err.find("bits will differ") != std::string::npos) != reproducible);
    if (!reproducible) continue;
    const json rest = json::parse(std::ifstream(place.file("other.json")));
    CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
  }
}

// Every message takes 2 ms and nothing is hidden: whatever else was measured, one all-reduce is best.
// On a ring its bits are not those of the buckets at first.
TEST_CASE("resume: buckets that were laid out anew are used again, with the same bits") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words common = {"--width",      "512",
                        "--batch",      "4",
                        "--data",       place.data(),
                        "--ranks",      "3",
                        "--pace",       "1GB/s,2ms",
                        "--steps",      "9",
                        "--no-overlap", "--bucket-cap-mb",
                        "auto",         "--algorithm",
                        "ring",         "--checkpoint-dir",
                        folder};
  const json whole =
      place.train_on(common + Words{"--checkpoint-every", "7", "--checkpoint-keep", "9"});
  REQUIRE(whole["summary"]["buckets"].size() == 1);
  std::ofstream(folder + "/latest") << "step-00000007\n";
  const ProgramResult rest = run(common + Words{"--resume", "--json", place.file("rest.json")});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(rest.err.find("1 buckets, as measured then") != std::string::npos);
  CHECK(rest.err.find("bits will differ") == std::string::npos);
  const json summary = json::parse(read_text(place.file("rest.json")))["summary"];
  CHECK(summary["relayout"].is_null());
  CHECK(summary["buckets"].size() == 1);
  CHECK(summary["parameter_hash"] == whole["summary"]["parameter_hash"]);
}

// As above; the checkpoint is made after two steps of the five that count. Its gradients would be summed
// in another order by other buckets.
TEST_CASE("resume: from before buckets are laid out anew, with the same bits") {
  const Workplace place;
  for (const bool reproducible : {false, true}) {
    const std::string folder = place.file(reproducible ? "reproducible" : "ring");
    const Words order =
        reproducible ? Words{"--reproducible"} : Words{"--algorithm", "ring", "--no-overlap"};
    const Words common =
        Words{"--width",         "512",  "--batch",          "4",         "--data",  place.data(),
              "--ranks",         "3",    "--pace",           "1GB/s,2ms", "--steps", "9",
              "--bucket-cap-mb", "auto", "--checkpoint-dir", folder} +
        order;
    const json whole =
        place.train_on(common + Words{"--checkpoint-every", "2", "--checkpoint-keep", "9"});
    CHECK(whole["summary"]["relayout"]["after_step"] == 2);
    const json state = json::parse(read_text(folder + "/step-00000002/state.json"));
    CHECK(state["extra"].value("bucket_ends", json()).size() == whole["summary"]["buckets"].size());
    std::ofstream(folder + "/latest") << "step-00000002\n";
    const ProgramResult rest = run(common + Words{"--resume", "--json", place.file("rest.json")});
    INFO(rest.err);
    REQUIRE(rest.exit_code == 0);
    CHECK(rest.err.find("bits will differ") == std::string::npos);
    const json resumed = json::parse(read_text(place.file("rest.json")));
    CHECK(resumed["summary"]["relayout"].is_null());
    CHECK(resumed["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
    for (size_t s = 0; s < resumed["steps"].size(); ++s) {
      CHECK(resumed["steps"][s]["loss"] == whole["steps"][s + 2]["loss"]);
    }
  }
}

TEST_CASE("resume: where more ranks find nothing of an epoch to share, the next begins") {
  const Workplace place;
  std::ofstream(place.file("odd")) << std::string(16 + 25, 'x');  // 25 samples
  const Words common = {"--width",          "16",
                        "--batch",          "1",
                        "--data",           place.file("odd"),
                        "--sampler-tail",   "drop",
                        "--checkpoint-dir", place.file("checkpoints")};
  (void)place.train_on(common + Words{"--ranks", "2", "--steps", "11"});
  const json rest = place.train_on(common + Words{"--ranks", "4", "--steps", "13", "--resume"});
  REQUIRE(rest["steps"].size() == 2);  // of the three samples that were left none has its own rank
  CHECK(rest["steps"][0]["epoch"] == 1);
}

TEST_CASE("resume: it is said where buckets travel by other algorithms, whose bits differ") {
  const Workplace place;
  const auto train = [&](const std::string& profile, const Words& flags) {
    auto environment = kNoLauncher;
    environment.push_back("RONDO_LINKS=" + profile);
    const ProgramResult result = rondo::testing::run_program(
        Words{RONDO_TRAIN, "--ranks", "3", "--width", "16", "--data", place.short_data(),
              "--checkpoint-dir", place.file("checkpoints")} +
            flags,
        environment);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result.err;
  };
  (void)train(links(place, "peer_us"), {"--steps", "2"});
  CHECK(train(links(place, "peer_us"), {"--steps", "3", "--resume"}).find("bits will differ") ==
        std::string::npos);
  const std::string said = train(links(place, "alpha_us"), {"--steps", "4", "--resume"});
  INFO(said);
  CHECK(said.find("travelled by ring, now by one-shot") != std::string::npos);
  CHECK(said.find("bits will differ") != std::string::npos);
}

TEST_CASE("resume: another run's checkpoint is refused, with what differs") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words common = kNano + Words{"--data", place.data(), "--checkpoint-dir", folder};
  (void)place.train_on(common + Words{"--steps", "2"});
  const auto refused = [&](const Words& words, const std::string& part) {
    const ProgramResult result = run(words);
    INFO(result.err);
    CHECK(result.exit_code != 0);
    CHECK(result.err.find(part) != std::string::npos);
  };
  refused(common + Words{"--steps", "4"}, "holds checkpoints already: add --resume");
  refused(with(common, "--layers", "1") + Words{"--steps", "4", "--resume"}, "layers: 2, now 1");
  refused(with(common, "--heads", "4") + Words{"--steps", "4", "--resume"}, "heads: 2, now 4");
  refused(common + Words{"--steps", "4", "--resume", "--seed", "3"}, "seed: 0, now 3");
  refused(common + Words{"--steps", "4", "--resume", "--optimizer", "sgd"}, "optimizer");
  refused(common + Words{"--steps", "4", "--resume", "--beta1", "0.8"}, "beta1: 0.9, now 0.8");
  refused(common + Words{"--steps", "4", "--resume", "--beta2", "0.95"}, "beta2: 0.999, now 0.95");
  refused(kNano + Words{"--data", place.short_data(), "--checkpoint-dir", folder, "--resume"},
          "made on other data");
  // Nothing left to do is no error, but said.
  const ProgramResult again = run(common + Words{"--steps", "2", "--resume"});
  INFO(again.err);
  CHECK(again.exit_code == 0);
  CHECK(again.err.find("nothing to do: '" + folder + "' holds step 2, and --steps 2 ends there") !=
        std::string::npos);
  // A folder whose `latest` is lost is not taken for an empty one. What is alone in it is meant.
  std::filesystem::rename(folder + "/latest", folder + "/lost");
  refused(common + Words{"--steps", "4"}, "holds checkpoints already: add --resume");
  CHECK(run(common + Words{"--steps", "2", "--resume"}).err.find("holds step 2") !=
        std::string::npos);
  const std::string only = folder + "/step-00000002", older = folder + "/step-00000001";
  std::filesystem::copy(only, older);
  refused(common + Words{"--steps", "4", "--resume"}, "write step-00000002 into");
  std::filesystem::remove_all(older);
  std::filesystem::rename(folder + "/lost", folder + "/latest");
  // A damaged file is named.
  std::filesystem::resize_file(folder + "/step-00000002/model.safetensors", 100);
  refused(common + Words{"--steps", "4", "--resume"}, "model.safetensors");
}

TEST_CASE("resume: a checkpoint that does not say AdamW's betas was made with the usual ones") {
  const Workplace place;
  const std::string now = place.file("now"), older = place.file("older");
  const Words common = kNano + Words{"--data", place.data()};
  const json whole = place.train_on(common + Words{"--steps", "4"});
  (void)place.train_on(common + Words{"--steps", "2", "--checkpoint-dir", now});
  auto loaded = rondo::trainer::load_checkpoint(now).value();
  for (const char* beta : {"beta1", "beta2"}) REQUIRE(loaded.state.options.erase(beta) == 1);
  REQUIRE(rondo::trainer::save_checkpoint(older, loaded.state, loaded.model.tensors(),
                                          loaded.optimizer[0].tensors())
              .ok());
  const Words resumes = common + Words{"--steps", "4", "--checkpoint-dir", older, "--resume"};
  const ProgramResult other = run(resumes + Words{"--beta2", "0.95"});
  INFO(other.err);
  CHECK(other.exit_code != 0);
  CHECK(other.err.find("beta2: 0.999, now 0.95") != std::string::npos);
  CHECK(place.train_on(resumes)["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
}

TEST_CASE("resume: other tokens are refused, unless an older hash cannot be compared") {
  const Workplace place;
  write_file(place.file("tokens.bin"), token_file(std::vector<uint16_t>(200, 3)));
  const std::string folder = place.file("now");
  const Words common = kNano + Words{"--data", place.file("tokens.bin"), "--data-format",
                                     "tokens", "--vocabulary",           "64"};
  (void)place.train_on(common + Words{"--steps", "2", "--checkpoint-dir", folder});
  auto loaded = rondo::trainer::load_checkpoint(folder).value();
  const auto resumes = [&](const std::string& name) {
    REQUIRE(rondo::trainer::save_checkpoint(place.file(name), loaded.state, loaded.model.tensors(),
                                            loaded.optimizer[0].tensors())
                .ok());
    return run(common + Words{"--steps", "4", "--checkpoint-dir", place.file(name), "--resume"});
  };
  loaded.state.extra["data_hash"] = 1;
  const ProgramResult other = resumes("other");
  INFO(other.err);
  CHECK(other.exit_code != 0);
  CHECK(other.err.find("made on other data") != std::string::npos);
  REQUIRE(loaded.state.extra.erase("data_hash_version") == 1);
  CHECK(resumes("older").exit_code == 0);
  loaded.state.extra["samples"] = 99;
  CHECK(resumes("longer").err.find("99 samples then, 12 now") != std::string::npos);
}

TEST_CASE("resume: a folder is one run's until that has ended, however it ends") {
  const Workplace place;
  const std::string folder = place.file("ckpt");
  const Words common = kNano + Words{"--data", place.data(), "--checkpoint-dir", folder};
  const ProgramResult first = rondo::testing::run_program(
      Words{RONDO_TRAIN, "--steps", "1000000", "--checkpoint-every", "1"} + common, kNoLauncher,
      std::chrono::seconds{120}, [&](pid_t pid) {
        while (!std::filesystem::exists(folder + "/latest")) std::this_thread::yield();
        for (const Words& flags : {Words{}, Words{"--resume"}, Words{"--elastic"}}) {
          const ProgramResult second = run(common + Words{"--steps", "1"} + flags);
          INFO(second.err);
          CHECK(second.exit_code != 0);
          CHECK(second.err.find("another run saves checkpoints into '" + folder + "'") !=
                std::string::npos);
          CHECK(second.err.find("process " + std::to_string(pid) + " on ") != std::string::npos);
        }
        kill(pid, SIGKILL);
      });
  INFO(first.err);
  CHECK(!first.timed_out);
  const ProgramResult rest = run(common + Words{"--steps", "1", "--resume"});
  INFO(rest.err);
  CHECK(rest.exit_code == 0);
}

TEST_CASE("resume: weights of a file are where a run without checkpoint begins") {
  const Workplace place;
  const std::string weights = place.file("gpt2.safetensors");
  (void)place.train_on(kNano +
                       Words{"--data", place.data(), "--steps", "5", "--save-weights", weights});
  const Words common = kNano + Words{"--data", place.data(), "--steps", "1", "--weights", weights};
  const auto plain = losses_of(place.train_on(common));
  const auto resumable =
      losses_of(place.train_on(common + Words{"--checkpoint-dir", place.file("new"), "--resume"}));
  CHECK(plain == resumable);
  CHECK(plain[0] <
        losses_of(place.train_on(kNano + Words{"--data", place.data(), "--steps", "1"}))[0]);
}
