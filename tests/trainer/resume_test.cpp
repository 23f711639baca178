// rondo-train --resume, with ranks as processes: the same bits as without interruption, another
// number of ranks, and files that are another run's.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"
#include "trainer/checkpoint/checkpoint.hpp"

namespace rondo::trainer::resume_test {

using rondo::testing::kSanitized;
using namespace testing;  // NOLINT: the trainer's

namespace {

/// Of a run with these flags that saves every so many steps: from the checkpoint of that step on.
json resume_at(const Workplace& place, const Words& flags, const std::string& folder, int step) {
  const Words saves = flags + "--checkpoint-keep 99 --checkpoint-dir"_words + folder;
  place.train_on(saves + "--checkpoint-every" + step);
  std::ofstream(folder + "/latest") << "step-0000000" << step << "\n";
  return place.train_on(saves + "--resume");
}

/// The loaded checkpoint's state, changed, as another checkpoint.
void save_again(const std::string& folder, const LoadedCheckpoint& loaded) {
  REQUIRE(
      save_checkpoint(folder, loaded.state, loaded.model.tensors(), loaded.optimizer[0].tensors())
          .ok());
}

}  // namespace

TEST_CASE(
    "resume: the same bits as without interruption, in the middle of an epoch and behind it") {
  const Workplace place;
  write_images(place.file("images"), 40);
  // Only an evaluation sees the running statistics.
  const Words pictures =
      kCnn + "--data" + place.file("images") + "--validation" + place.file("images");
  const std::vector<Words> runs = {
      kNano + "--dropout 0.1"_words, kNano + "--beta1 0.8 --beta2 0.95"_words,
      kNano + "--layer-drop 0.4 --accum 2"_words, pictures + "--sync-batch-norm", pictures,
      pictures + "--no-broadcast-buffers",
      // Its second step overflows, so that the scale is not the first one any more.
      "--width 96 --batch 4 --dtype fp16 --optimizer adamw --lr 0.1"_words,
      "--width 32 --batch 4 --dtype fp16 --lr-decay cosine --warmup 3 --clip 0.5"_words};
  int number = 0;
  for (const Words& run : runs) {
    Words common = run + "--ranks 3 --steps 12"_words;
    if (run[1] != "cnn") common = common + "--data" + place.short_data();
    const json whole = place.train_on(common);
    for (const int stop : {3, 7}) {
      const std::string folder = place.file("checkpoints" + std::to_string(number++));
      if (kSanitized && number % 4 > 1) continue;  // in turns, one of the two
      // A decay ends where the run ends, so the first part is a run that is cut off.
      const json rest = resume_at(place, common, folder, stop);
      INFO(run[1] << ", stopped at " << stop);
      const json state = read_json(folder + "/step-0000000" + std::to_string(stop) + "/state.json");
      CHECK(state["schedule"]["base_rate"] == state["options"]["lr"]);
      CHECK(state["schedule"]["last_step"] == 12);
      for (const json& bucket : state["buckets"]) CHECK(bucket["algorithm"] != "");
      REQUIRE(rest["steps"].size() == 12 - static_cast<size_t>(stop));
      CHECK(hash_of(rest) == hash_of(whole));
      CHECK(rest["steps"].back()["loss"] == whole["steps"].back()["loss"]);
      CHECK(rest.value("validation", json()) == whole.value("validation", json()));
      for (size_t s = 0; s < rest["steps"].size(); ++s) {
        const json& step = whole["steps"][s + static_cast<size_t>(stop)];
        CHECK(rest["steps"][s].value("skipped", false) == step.value("skipped", false));
      }
    }
  }
}

TEST_CASE("resume: ranks with data of their own go on where each was") {
  const Workplace place;
  write_images(place.file("images0"), 9);
  write_images(place.file("images1"), 14);
  const Words common =
      kCnn + "--ranks 2 --join --epochs 2 --data"_words + place.file("images{rank}");
  const json whole = place.train_on(common);
  // Rank 0 has ended, rank 1 has not.
  const json rest = resume_at(place, common, place.file("checkpoints"), 4);
  CHECK(hash_of(rest) == hash_of(whole));
  CHECK(rest["steps"].size() == whole["steps"].size() - 4);
}

TEST_CASE("resume: data of a rank's own that are others, or everybody's, are refused") {
  const Workplace place;
  write_file(place.file("a0"), std::string(3000, 'a') + "a0");
  write_file(place.file("a1"), std::string(3000, 'a') + "a1");
  write_file(place.file("b1"), std::string(3000, 'b') + "b1");
  std::filesystem::copy_file(place.file("a0"), place.file("b0"));
  for (const auto& [then, now] :
       {std::pair("a{rank}", "b{rank}"), {"a{rank}", "a0"}, {"a0", "a{rank}"}}) {
    INFO(then << ", then " << now);
    const Words saves = "--width 32 --batch 4 --ranks 2 --checkpoint-dir"_words +
                        place.file(std::string("of ") + then + now);
    place.train_on(saves + "--steps 2 --data"_words + place.file(then));
    const Words rest = saves + "--resume --steps 4 --data"_words;
    check_refused(rest + place.file(now), {"its position would mean nothing"});
    run_ok(rest + place.file(then));
  }
}

TEST_CASE("resume: by epochs the schedule ends where it would have") {
  const Workplace place;
  const std::string decay = GENERATE("cosine", "linear");
  const Words common = kNano + "--epochs 2 --ranks 2 --drop-last --data"_words +
                       place.short_data() + "--lr-decay" + decay;
  const json whole = place.train_on(common);
  const json rest = resume_at(place, common, place.file("checkpoints"), 3);
  CHECK(rest["steps"].size() == whole["steps"].size() - 3);
  CHECK(rest["steps"].back()["lr"] == whole["steps"].back()["lr"]);
  CHECK(hash_of(rest) == hash_of(whole));
}

// The global batch is ranks x --batch x --accum: the same one gives the same losses but for their last
// bits, whatever it is made of.
TEST_CASE("resume: with the same global batch the losses go on, with another one it is said so") {
  const Workplace place;
  const std::string folder = place.file("checkpoints"), file = place.file("rest.json");
  const Words common = kNano + "--dtype fp64 --data"_words + place.data();
  const json whole = place.train_on(common + "--steps 6 --ranks 2"_words);
  const Words saves = common + "--checkpoint-dir" + folder;
  place.train_on(saves + "--steps 4 --ranks 2"_words);
  struct Rest {
    std::string ranks, batch, accum;
    bool same_losses;
    Words said;
  };
  const std::string made = "made by 2 ranks with --batch 2", global = ", a global batch of ";
  const std::vector<Rest> rests = {
      {"2", "2", "1", true, {}},
      {"1", "4", "1", true, {made + ", this run has 1 rank with --batch 4", "bits will differ"}},
      {"2", "1", "2", true, {made + ", this run has 2 ranks with --batch 1 --accum 2"}},
      {"1", "2", "1", false, {made + global + "4; this run has 1 rank with --batch 2" + global}},
      {"2", "3", "1", false, {made, "--batch 3" + global + "6", "with the number of ranks is 4"}}};
  for (const Rest& rest : rests) {
    INFO(rest.ranks << " ranks, batch " << rest.batch << ", accum " << rest.accum);
    std::ofstream(folder + "/latest") << "step-00000004\n";
    std::filesystem::remove_all(folder + "/step-00000006");
    const ProgramResult got =
        run_ok(with(saves, "--batch", rest.batch) + "--steps 6 --resume --json"_words + file +
               "--ranks" + rest.ranks + "--accum" + rest.accum);
    INFO(got.err);
    CHECK((got.err.find("the checkpoint was made by") != std::string::npos) == !rest.said.empty());
    for (const std::string& part : rest.said) CHECK_THAT(got.err, contains(part));
    CHECK((got.err.find("the losses will differ") != std::string::npos) == !rest.same_losses);
    CHECK_THAT(got.err, !contains("resuming with other options"));
    const auto losses = losses_of(read_json(file));
    REQUIRE(losses.size() == 2);
    if (rest.same_losses) CHECK(losses[1] == Approx(losses_of(whole)[5]).epsilon(1e-9));
  }
}

TEST_CASE("resume: with other buckets it is said that bits differ, unless they are reproducible") {
  const Workplace place;
  for (const bool reproducible : {false, true}) {
    Words common = "--width 32 --ranks 3 --data"_words + place.data();
    if (reproducible) common = common + "--reproducible";
    const json whole = place.train_on(common + "--steps 2"_words);
    common = common + "--checkpoint-dir" + place.file(reproducible ? "same" : "other");
    place.train_on(common + "--steps 1"_words);
    const std::string said =
        run_ok(common + "--steps 2 --resume --bucket-cap-mb 0.01 --json"_words +
               place.file("other.json"))
            .err;
    INFO(said);
    CHECK((said.find("with another bucket layout") != std::string::npos) != reproducible);
    CHECK((said.find("bits will differ") != std::string::npos) != reproducible);
    if (reproducible) CHECK(hash_of(read_json(place.file("other.json"))) == hash_of(whole));
  }
}

// Every message takes 2 ms and nothing is hidden: whatever else was measured, one all-reduce is best.
// On a ring its bits are not those of the buckets at first. A checkpoint is made after seven steps, when
// buckets have been laid out again, or after two of the five that count: other buckets would sum its
// gradients in another order.
TEST_CASE("resume: with buckets that were laid out again, before or after it, with the same bits") {
  const Workplace place;
  struct Run {
    Words order;
    int step;
  };
  const Words ring = "--algorithm ring --no-overlap"_words;
  for (const auto& [order, step] : {Run{ring, 7}, Run{ring, 2}, Run{{"--reproducible"}, 2}}) {
    INFO(json(order).dump() << ", resumed after step " << step);
    const std::string number = std::to_string(step), name = "step-0000000" + number;
    const std::string folder = place.file(order[0] + number), file = place.file("rest.json");
    const Words common =
        "--width 512 --batch 4 --ranks 3 --pace 1GB/s,2ms --steps 9 --bucket-cap-mb auto"_words +
        "--data" + place.data() + "--checkpoint-dir" + folder + order;
    const json whole =
        place.train_on(common + "--checkpoint-keep 9 --checkpoint-every"_words + number);
    const json& buckets = whole["summary"]["buckets"];
    if (step == 7) {
      REQUIRE(buckets.size() == 1);
    } else {
      CHECK(whole["summary"]["relayout"]["after_step"] == 2);
      const json state = read_json(folder + "/" + name + "/state.json");
      CHECK(state["extra"].value("bucket_ends", json()).size() == buckets.size());
    }
    std::ofstream(folder + "/latest") << name << "\n";
    const ProgramResult rest = run_ok(common + "--resume --json"_words + file);
    if (step == 7) CHECK_THAT(rest.err, contains("1 buckets, as measured then"));
    CHECK_THAT(rest.err, !contains("bits will differ"));
    const json resumed = read_json(file);
    CHECK(resumed["summary"]["relayout"].is_null());
    CHECK(resumed["summary"]["buckets"].size() == buckets.size());
    CHECK(hash_of(resumed) == hash_of(whole));
    for (size_t s = 0; s < resumed["steps"].size(); ++s) {
      CHECK(resumed["steps"][s]["loss"] == whole["steps"][s + static_cast<size_t>(step)]["loss"]);
    }
  }
}

TEST_CASE("resume: where more ranks find nothing of an epoch to share, the next begins") {
  const Workplace place;
  write_file(place.file("odd"), std::string(16 + 25, 'x'));  // 25 samples
  const Words common = "--width 16 --batch 1 --sampler-tail drop --data"_words + place.file("odd") +
                       "--checkpoint-dir" + place.file("checkpoints");
  place.train_on(common + "--ranks 2 --steps 11"_words);
  const json rest = place.train_on(common + "--ranks 4 --steps 13 --resume"_words);
  REQUIRE(rest["steps"].size() == 2);  // of the three samples that were left none has its own rank
  CHECK(rest["steps"][0]["epoch"] == 1);
}

TEST_CASE("resume: it is said where buckets travel by other algorithms, whose bits differ") {
  const Workplace place;
  const auto train = [&](const char* dear, const Words& flags) {
    return run_ok("--ranks 3 --width 16 --data"_words + place.short_data() + "--checkpoint-dir" +
                      place.file("checkpoints") + flags,
                  on_links(place, dear))
        .err;
  };
  train("peer_us", "--steps 2"_words);
  CHECK_THAT(train("peer_us", "--steps 3 --resume"_words), !contains("bits will differ"));
  const std::string said = train("alpha_us", "--steps 4 --resume"_words);
  CHECK_THAT(said, contains("travelled by ring, now by one-shot"));
  CHECK_THAT(said, contains("bits will differ"));
}

TEST_CASE("resume: another run's checkpoint is refused, with what differs") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words common = kNano + "--data" + place.data() + "--checkpoint-dir" + folder;
  const Words four = "--steps 4"_words, on = "--steps 4 --resume"_words;
  const Words two = common + "--steps 2 --resume"_words;
  place.train_on(two);
  check_refused(common + four, {"holds checkpoints already: add --resume"});
  check_refused(with(common, "--layers", "1") + on, {"layers: 2, now 1"});
  check_refused(with(common, "--heads", "4") + on, {"heads: 2, now 4"});
  check_refused(common + on + "--seed 3"_words, {"seed: 0, now 3"});
  check_refused(common + on + "--optimizer sgd"_words, {"optimizer"});
  check_refused(common + on + "--beta1 0.8"_words, {"beta1: 0.9, now 0.8"});
  check_refused(common + on + "--beta2 0.95"_words, {"beta2: 0.999, now 0.95"});
  check_refused(with(common, "--data", place.short_data()) + "--resume", {"made on other data"});
  // Nothing left to do is no error, but said.
  CHECK_THAT(run_ok(two).err,
             contains("nothing to do: '" + folder + "' holds step 2, and --steps 2 ends there"));
  // A folder whose `latest` is lost is not taken for an empty one. What is alone in it is meant.
  std::filesystem::rename(folder + "/latest", folder + "/lost");
  check_refused(common + four, {"holds checkpoints already: add --resume"});
  CHECK_THAT(run(two).err, contains("holds step 2"));
  const std::string only = folder + "/step-00000002", older = folder + "/step-00000001";
  std::filesystem::copy(only, older);
  check_refused(common + on, {"write step-00000002 into"});
  std::filesystem::remove_all(older);
  std::filesystem::rename(folder + "/lost", folder + "/latest");
  // A damaged file is named.
  std::filesystem::resize_file(only + "/model.safetensors", 100);
  check_refused(common + on, {"model.safetensors"});
}

TEST_CASE("resume: a checkpoint that does not say AdamW's betas was made with the usual ones") {
  const Workplace place;
  const std::string now = place.file("now"), older = place.file("older");
  const Words common = kNano + "--data" + place.data();
  const json whole = place.train_on(common + "--steps 4"_words);
  place.train_on(common + "--steps 2 --checkpoint-dir"_words + now);
  auto loaded = load_checkpoint(now).value();
  for (const char* beta : {"beta1", "beta2"}) REQUIRE(loaded.state.options.erase(beta) == 1);
  save_again(older, loaded);
  const Words resumes = common + "--steps 4 --resume --checkpoint-dir"_words + older;
  check_refused(resumes + "--beta2 0.95"_words, {"beta2: 0.999, now 0.95"});
  CHECK(hash_of(place.train_on(resumes)) == hash_of(whole));
}

TEST_CASE("resume: other tokens are refused, unless an older hash cannot be compared") {
  const Workplace place;
  write_file(place.file("tokens.bin"), token_file(std::vector<uint16_t>(200, 3)));
  const Words common = kNano + "--data-format tokens --vocabulary 64 --data"_words +
                       place.file("tokens.bin") + "--checkpoint-dir";
  place.train_on(common + place.file("now") + "--steps 2"_words);
  auto loaded = load_checkpoint(place.file("now")).value();
  const auto resumed = [&](const std::string& name) {
    save_again(place.file(name), loaded);
    return common + place.file(name) + "--steps 4 --resume"_words;
  };
  loaded.state.extra["data_hash"] = 1;
  check_refused(resumed("other"), {"made on other data"});
  REQUIRE(loaded.state.extra.erase("data_hash_version") == 1);
  run_ok(resumed("older"));
  loaded.state.extra["samples"] = 99;
  CHECK_THAT(run(resumed("longer")).err, contains("99 samples then, 12 now"));
}

TEST_CASE("resume: a folder is one run's until that has ended, however it ends") {
  const Workplace place;
  const std::string folder = place.file("ckpt");
  const Words common = kNano + "--data" + place.data() + "--checkpoint-dir" + folder;
  const ProgramResult first = rondo::testing::run_program(
      Words{RONDO_TRAIN} + common + "--steps 1000000 --checkpoint-every 1"_words, kNoLauncher,
      std::chrono::seconds{120}, [&](pid_t pid) {
        while (!std::filesystem::exists(folder + "/latest")) std::this_thread::yield();
        for (const Words& flags : {Words{}, Words{"--resume"}, Words{"--elastic"}}) {
          check_refused(common + "--steps 1"_words + flags,
                        {"another run saves checkpoints into '" + folder + "'",
                         "process " + std::to_string(pid) + " on "});
        }
        kill(pid, SIGKILL);
      });
  INFO(first.err);
  CHECK(!first.timed_out);
  run_ok(common + "--steps 1 --resume"_words);
}

TEST_CASE("resume: weights of a file are where a run without checkpoint begins") {
  const Workplace place;
  const std::string weights = place.file("gpt2.safetensors");
  place.train(kNano + "--steps 5 --save-weights"_words + weights);
  const Words step = kNano + "--steps 1"_words, common = step + "--weights" + weights;
  const auto plain = losses_of(place.train(common));
  const Words resumable = common + "--resume --checkpoint-dir"_words + place.file("new");
  CHECK(plain == losses_of(place.train(resumable)));
  CHECK(plain[0] < losses_of(place.train(step))[0]);
}

}  // namespace rondo::trainer::resume_test
