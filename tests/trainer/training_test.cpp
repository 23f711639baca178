// What rondo-train promises beyond one model and one kind of data, with ranks as processes: every
// model and precision, exact resume, uneven inputs, skipped layers, validation, and files that are
// another run's.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/harness/catch.hpp"
#include "tests/trainer/workplace.hpp"

using nlohmann::json;
using rondo::testing::ProgramResult;
using namespace rondo::trainer::testing;

namespace {

using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kNano = {"--model", "gpt", "--layers",  "2",  "--width", "32",
                     "--heads", "2",   "--context", "16", "--batch", "2"};
const Words kCnn = {"--model", "cnn", "--width", "4", "--batch", "3", "--data-format", "images"};

/// `count` pictures of 12 x 12 in ten classes, from number `first` on.
void write_images(const std::string& folder, uint32_t count, uint64_t first = 0) {
  write_pictures(folder, "train", count, 12, 10, 1, first);
}

/// The same flags with another value of one.
Words with(Words words, const std::string& flag, const std::string& value) {
  const auto found = std::find(words.begin(), words.end(), flag);
  REQUIRE(found != words.end());
  *(found + 1) = value;
  return words;
}

void check_same_losses(const json& a, const json& b, double tolerance) {
  const auto first = losses_of(a), second = losses_of(b);
  REQUIRE(first.size() == second.size());
  for (size_t s = 0; s < first.size(); ++s) {
    INFO("step " << s + 1 << ": " << first[s] << " and " << second[s]);
    REQUIRE(std::abs(first[s] - second[s]) <= tolerance * std::abs(first[s]));
  }
}

}  // namespace

TEST_CASE("gpt: N ranks follow one rank with N times the batch", "[again]") {
  const Workplace place;
  for (const int ranks : {2, 3, 4}) {
    const Words common = {"--model", "gpt", "--layers",  "2",  "--width", "32",
                          "--heads", "2",   "--context", "16", "--lr",    "0.001"};
    const auto with = [&](const Words& more) { return place.train(common + more); };
    const std::string whole = std::to_string(2 * ranks), n = std::to_string(ranks);
    check_same_losses(with({"--batch", whole, "--steps", "20"}),
                      with({"--batch", "2", "--ranks", n, "--steps", "20"}), 1e-5);
    const json one = with({"--batch", whole, "--steps", "200", "--dtype", "fp64"});
    check_same_losses(
        one, with({"--batch", "2", "--ranks", n, "--steps", "200", "--dtype", "fp64"}), 1e-9);
    CHECK(losses_of(one).back() < losses_of(one).front());
  }
}

TEST_CASE("gpt: the looked-up rows travel whole or as touched rows, and the policy is no matter") {
  const Workplace place;
  const Words common =
      kNano + Words{"--ranks", "3", "--steps", "8", "--dtype", "fp64", "--vocabulary", "2000"};
  const json touched = place.train(common + Words{"--tied-rows", "touched"});
  const json whole = place.train(common + Words{"--tied-rows", "whole"});
  check_same_losses(touched, whole, 1e-12);
  CHECK(touched["summary"]["bytes_sent_per_step"].get<double>() <
        0.8 * whole["summary"]["bytes_sent_per_step"].get<double>());
}

TEST_CASE("cnn: synchronized batch norm makes N ranks follow one; local statistics do not",
          "[again]") {
  const Workplace place;
  write_images(place.file("images"), 60);
  const Words common = {"--model", "cnn",  "--width", "4",   "--data",      place.file("images"),
                        "--dtype", "fp64", "--steps", "200", "--optimizer", "adamw",
                        "--lr",    "0.001"};
  for (const int ranks : {2, 3, 4}) {
    const json one = place.train_on(common + Words{"--batch", std::to_string(12)});
    const Words many =
        common + Words{"--batch", std::to_string(12 / ranks), "--ranks", std::to_string(ranks)};
    check_same_losses(one, place.train_on(many + Words{"--sync-batch-norm"}), 1e-9);
    const auto local = losses_of(place.train_on(many));
    CHECK(std::abs(local[5] - losses_of(one)[5]) > 1e-6);
  }
}

TEST_CASE(
    "resume: the same bits as without interruption, in the middle of an epoch and behind it") {
  const Workplace place;
  write_images(place.file("images"), 40);
  std::vector<Words> runs;
  runs.push_back(kNano + Words{"--dropout", "0.1", "--data", place.short_data()});
  runs.push_back(kNano +
                 Words{"--layer-drop", "0.4", "--accum", "2", "--data", place.short_data()});
  runs.push_back(kCnn + Words{"--data", place.file("images"), "--sync-batch-norm"});
  runs.push_back(kCnn + Words{"--data", place.file("images")});
  runs.push_back({"--width", "32", "--batch", "4", "--dtype", "fp16", "--lr-decay", "cosine",
                  "--warmup", "3", "--clip", "0.5", "--data", place.short_data()});
  int number = 0;
  for (const Words& run : runs) {
    for (const std::string stop : {"3", "7"}) {
      const std::string folder = place.file("checkpoints" + std::to_string(number++));
      const Words common = run + Words{"--ranks", "3"};
      const json whole = place.train_on(common + Words{"--steps", "12"});
      // A cosine ends where the run ends, so the first part is a run that is cut off.
      (void)place.train_on(common + Words{"--steps", "12", "--checkpoint-dir", folder,
                                          "--checkpoint-every", stop, "--checkpoint-keep", "9"});
      const std::string name = "step-0000000" + stop;
      REQUIRE(std::filesystem::exists(folder + "/" + name));
      std::ofstream(folder + "/latest") << name << "\n";
      const json rest =
          place.train_on(common + Words{"--steps", "12", "--checkpoint-dir", folder, "--resume"});
      INFO(run[1] << ", stopped at " << stop);
      CHECK(rest["steps"].size() == 12 - std::stoul(stop));
      CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
      CHECK(rest["steps"].back()["loss"] == whole["steps"].back()["loss"]);
    }
  }
}

TEST_CASE("resume: by epochs the schedule ends where it would have") {
  const Workplace place;
  const Words common =
      kNano + Words{"--data", place.short_data(), "--epochs", "2",          "--lr-decay",
                    "cosine", "--ranks",          "2",        "--drop-last"};
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

TEST_CASE("resume: on another number of ranks the losses go on, and it is said that bits differ") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words common = kNano + Words{"--dtype", "fp64", "--data", place.data()};
  const json whole = place.train_on(common + Words{"--steps", "8", "--ranks", "2"});
  (void)place.train_on(common + Words{"--steps", "4", "--ranks", "2", "--checkpoint-dir", folder});
  const ProgramResult rest =
      run(common + Words{"--steps", "8", "--ranks", "2", "--checkpoint-dir", folder, "--resume",
                         "--json", place.file("rest.json")});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(rest.err.find("bits will differ") == std::string::npos);
  std::ofstream(folder + "/latest") << "step-00000004\n";
  const ProgramResult other =
      run(kNano + Words{"--dtype", "fp64", "--data", place.data(), "--steps", "6", "--ranks", "1",
                        "--checkpoint-dir", folder, "--resume"});
  INFO(other.err);
  CHECK(other.exit_code == 0);
  CHECK(other.err.find("made by 2 ranks, now there are 1") != std::string::npos);
  CHECK(other.err.find("bits will differ") != std::string::npos);
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
  refused(kNano + Words{"--data", place.short_data(), "--checkpoint-dir", folder, "--resume"},
          "made on other data");
  // Nothing left to do is no error.
  const ProgramResult again = run(common + Words{"--steps", "2", "--resume"});
  INFO(again.err);
  CHECK(again.exit_code == 0);
  // A damaged file is named.
  std::filesystem::resize_file(folder + "/step-00000002/model.safetensors", 100);
  refused(common + Words{"--steps", "4", "--resume"}, "model.safetensors");
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

TEST_CASE("uneven inputs: every rank says so in that step, or ranks join") {
  const Workplace place;
  write_images(place.file("images0"), 8);
  write_images(place.file("images1"), 16);
  const Words common = {"--model", "cnn", "--width",  "2",
                        "--batch", "4",   "--data",   place.file("images{rank}"),
                        "--ranks", "2",   "--epochs", "2"};
  for (const Words& more : {Words{}, Words{"--sync-batch-norm"}, Words{"--accum", "3"},
                            Words{"--sync-batch-norm", "--accum", "3"}}) {
    const ProgramResult error = run(common + more);
    INFO(error.err);
    CHECK(!error.timed_out);
    CHECK(error.exit_code != 0);
    CHECK(error.err.find("uneven inputs") != std::string::npos);
    CHECK(error.err.find("rank 0 has no data left") != std::string::npos);
    const json joined = place.train_on(common + more + Words{"--join"});
    // Rank 1 has four batches in an epoch.
    const size_t steps = more.size() > 1 ? 4 : 8;
    CHECK(joined["steps"].size() == steps);
    CHECK(joined["steps"].back()["epoch"] == 1);
  }
}

TEST_CASE("join: unequal batches give the mean over all samples") {
  const Workplace place;
  // One rank with all pictures in file order equals two ranks whose files are its halves, when every
  // step takes all that there is.
  write_images(place.file("images0"), 5, 0);
  write_images(place.file("images1"), 3, 5);
  write_images(place.file("all"), 8, 0);
  const Words common = {"--model", "cnn",  "--width", "4",  "--batch",          "8",
                        "--dtype", "fp64", "--steps", "20", "--sync-batch-norm"};
  const json one = place.train_on(common + Words{"--data", place.file("all")});
  const json two = place.train_on(
      common + Words{"--data", place.file("images{rank}"), "--ranks", "2", "--join"});
  check_same_losses(one, two, 1e-9);
  const json as_ddp = place.train_on(common + Words{"--data", place.file("images{rank}"), "--ranks",
                                                    "2", "--join", "--average", "ranks"});
  CHECK(std::abs(losses_of(as_ddp)[10] - losses_of(one)[10]) > 1e-6);
}

TEST_CASE("validation: every sample once, whatever the number of ranks") {
  const Workplace place;
  write_images(place.file("images"), 20);
  write_images(place.file("others"), 13, 100);
  const Words common =
      kCnn + Words{"--data", place.file("images"), "--validation", place.file("others"), "--dtype",
                   "fp64"};
  // The same parameters: those of before the first step cannot be had, so those after one step.
  const json one = place.train_on({"--model", "cnn", "--width", "4", "--batch", "6", "--data",
                                   place.file("images"), "--validation", place.file("others"),
                                   "--dtype", "fp64", "--steps", "2", "--sync-batch-norm"});
  const json two = place.train_on(
      common + Words{"--steps", "2", "--ranks", "2", "--sync-batch-norm", "--validate-every", "1"});
  REQUIRE(two["validation"].size() == 2);
  CHECK(two["validation"][1]["samples"] == 13);
  CHECK(two["validation"][1]["validation_loss"].get<double>() ==
        Approx(one["validation"][0]["validation_loss"].get<double>()).epsilon(1e-9));
  const double hits = 13 * two["validation"][1]["accuracy"].get<double>();
  CHECK(hits == Approx(13 * one["validation"][0]["accuracy"].get<double>()));
  CHECK(hits == Approx(std::round(hits)));
}

TEST_CASE("validation: what has been learnt by heart is known") {
  const Workplace place;
  write_images(place.file("images"), 20);
  const json learnt =
      place.train_on({"--model", "cnn", "--width", "8", "--batch", "10", "--ranks", "2", "--data",
                      place.file("images"), "--validation", place.file("images"), "--steps", "150",
                      "--lr", "0.05", "--validate-every", "1"});
  CHECK(learnt["validation"].front()["accuracy"].get<double>() < 0.8);
  CHECK(learnt["validation"].back()["accuracy"].get<double>() == 1);
}

TEST_CASE("validation: all ranks use rank 0's running statistics") {
  const Workplace place;
  write_images(place.file("images"), 20);
  write_images(place.file("others"), 13, 100);
  // Each rank's own differ after a step; DataParallel has rank 0's only.
  const Words common = kCnn + Words{"--data",       place.file("images"),
                                    "--validation", place.file("others"),
                                    "--dtype",      "fp64",
                                    "--steps",      "3",
                                    "--ranks",      "2"};
  const auto loss = [](const json& document) {
    return document["validation"][0]["validation_loss"].get<double>();
  };
  const double dp = loss(place.train_on(common + Words{"--strategy", "dp"}));
  CHECK(loss(place.train_on(common)) == Approx(dp).epsilon(1e-9));
  CHECK(std::abs(loss(place.train_on(common + Words{"--no-broadcast-buffers"})) - dp) > 1e-7);
}

TEST_CASE("precision: bf16 and fp16 train, travel in half the bytes, and agree on skipped steps") {
  const Workplace place;
  const Words common = {"--width", "64", "--batch", "8", "--steps", "30", "--ranks", "3"};
  const json full = place.train(common);
  for (const std::string dtype : {"bf16", "fp16"}) {
    const json low = place.train(common + Words{"--dtype", dtype});
    CHECK(low["summary"]["bytes_sent_per_step"].get<double>() <
          0.6 * full["summary"]["bytes_sent_per_step"].get<double>());
    CHECK(low["summary"]["bytes_formula_per_step"].get<double>() <
          0.51 * full["summary"]["bytes_formula_per_step"].get<double>());
    const double last = losses_of(low).back();
    CHECK(last == Approx(losses_of(full).back()).epsilon(0.05));
    CHECK(low["summary"]["parameter_hash"] != full["summary"]["parameter_hash"]);
  }
  // A loss scale of 65536 is too large for this: steps are skipped on all ranks alike, or the
  // ranks' parameters would differ at the end.
  const json skipping = place.train({"--width", "32", "--batch", "64", "--steps", "20", "--ranks",
                                     "3", "--dtype", "fp16", "--lr", "2"});
  CHECK(losses_of(skipping).size() == 20);
}

TEST_CASE("skipped layers: a block that no rank used keeps its parameters") {
  const Workplace place;
  const Words common = kNano + Words{"--data", place.data(), "--steps", "6", "--ranks", "2"};
  const json dropped = place.train_on(common + Words{"--layer-drop", "0.5"});
  const json again = place.train_on(common + Words{"--layer-drop", "0.5"});
  CHECK(losses_of(dropped) == losses_of(again));
  CHECK(losses_of(dropped) != losses_of(place.train_on(common)));
  // Empty micro-batches use no block: they must not make a skipped one look used.
  const Words three =
      kNano + Words{"--data", place.tiny_data(), "--layer-drop", "0.9", "--steps", "4", "--accum",
                    "3",      "--dtype",         "fp64"};
  CHECK(place.train_on(three)["summary"]["parameter_hash"] ==
        place.train_on(three + Words{"--join"})["summary"]["parameter_hash"]);
}

TEST_CASE("reproducible: any bucket cap gives the same bits") {
  const Workplace place;
  const Words common =
      kNano + Words{"--data", place.data(), "--steps", "5", "--ranks", "3", "--reproducible"};
  const json first = place.train_on(common);
  for (const std::string cap : {"0", "0.01", "0.05"}) {
    const json other = place.train_on(common + Words{"--bucket-cap-mb", cap});
    CHECK(other["summary"]["parameter_hash"] == first["summary"]["parameter_hash"]);
    CHECK(other["summary"]["buckets"].size() > first["summary"]["buckets"].size());
  }
}

TEST_CASE("what is to be written at the end is tried before the work") {
  const Workplace place;
  const auto refused = [&](const Words& flags, const std::string& part) {
    const ProgramResult result = run(kNano + Words{"--data", place.data(), "--steps", "1"} + flags);
    INFO(result.out << result.err);
    CHECK(result.exit_code != 0);
    CHECK(result.err.find(part) != std::string::npos);
    CHECK(result.out.find("\"step\"") == std::string::npos);
  };
  refused({"--checkpoint-dir", "/proc/none"}, "/proc/none");
  refused({"--save-weights", place.file("no/folder/x")}, "no/folder/x");
  refused({"--weights", place.file("none")}, "none");
}
