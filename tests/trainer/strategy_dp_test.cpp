// --strategy dp as a program: the losses of ddp by another road, the bytes of a star, and a refusal
// by name of everything that only ddp has.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/synthetic_data.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::strategy_dp_test {

using nlohmann::json;
using rondo::testing::ProgramResult;
using rondo::testing::run_program;
using rondo::testing::TempDirectory;
using Words = std::vector<std::string>;

namespace {

const Words kNoLauncher = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR", "MASTER_PORT"};

class Workplace {
 public:
  Workplace() {
    rondo::trainer::testing::write_file(text(), rondo::trainer::testing::synthetic_text(8000, 1));
    // 101 samples: no number of ranks from 2 to 4 shares them equally.
    rondo::trainer::testing::write_file(odd(), rondo::trainer::testing::synthetic_text(117, 2));
    rondo::trainer::testing::write_pictures(folder_.path() + "/pictures", "t", 50, 8, 4, 3);
  }
  std::string text() const { return folder_.path() + "/text"; }
  std::string odd() const { return folder_.path() + "/odd"; }
  std::string pictures() const { return folder_.path() + "/pictures"; }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  ProgramResult run(Words words, const Words& environment = kNoLauncher) const {
    words.insert(words.begin(), RONDO_TRAIN);
    words.insert(words.end(), {"--log-every", "0", "--json", file("json")});
    return run_program(words, environment, std::chrono::seconds{120});
  }
  /// A run that must succeed; its document.
  json train(Words words, const std::string& strategy,
             const Words& environment = kNoLauncher) const {
    words.insert(words.end(), {"--strategy", strategy});
    const ProgramResult result = run(words, environment);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    std::ifstream document(file("json"));
    return json::parse(document);
  }

 private:
  TempDirectory folder_;
};

/// Both strategies with these flags, step by step.
void check_same_losses(const Workplace& place, const Words& flags, double tolerance) {
  const json ddp = place.train(flags, "ddp"), dp = place.train(flags, "dp");
  REQUIRE(ddp["steps"].size() == dp["steps"].size());
  REQUIRE(!dp["steps"].empty());
  for (size_t s = 0; s < ddp["steps"].size(); ++s) {
    const json &a = ddp["steps"][s], &b = dp["steps"][s];
    const double one = a["loss"], other = b["loss"];
    INFO(flags[1] << " ranks, step " << s + 1 << ": ddp " << one << ", dp " << other);
    REQUIRE(std::abs(one - other) <= tolerance * std::abs(one));
    REQUIRE(a["epoch"] == b["epoch"]);
    REQUIRE(a["lr"] == b["lr"]);
  }
  REQUIRE(ddp.contains("validation") == dp.contains("validation"));
  if (!ddp.contains("validation")) return;
  REQUIRE(ddp["validation"].size() == dp["validation"].size());
  for (size_t v = 0; v < ddp["validation"].size(); ++v) {
    const double one = ddp["validation"][v]["validation_loss"];
    const double other = dp["validation"][v]["validation_loss"];
    CHECK(std::abs(one - other) <= tolerance * std::abs(one));
  }
}

}  // namespace

TEST_CASE("dp has ddp's losses: fp32 1e-6, fp64 1e-12, 1 to 4 ranks", "[again]") {
  const Workplace place;
  for (const std::string ranks : {"1", "2", "3", "4"}) {
    const Words common = {"--ranks", ranks, "--data",  place.text(), "--width", "32",
                          "--batch", "3",   "--steps", "20",         "--clip",  "1"};
    Words narrow = common, wide = common;
    narrow.insert(narrow.end(), {"--validation", place.odd(), "--validate-every", "10"});
    wide.insert(wide.end(), {"--dtype", "fp64"});
    check_same_losses(place, narrow, 1e-6);
    check_same_losses(place, wide, 1e-12);
  }
}

TEST_CASE("dp has ddp's losses over epochs that ranks cannot share equally") {
  const Workplace place;
  const Words common = {"--ranks", "3", "--data",   place.odd(), "--width", "32",
                        "--batch", "4", "--epochs", "3",         "--dtype", "fp64"};
  check_same_losses(place, common, 1e-12);
  for (const Words& more : {Words{"--drop-last"}, Words{"--sampler-tail", "drop"}}) {
    Words flags = common;
    flags.insert(flags.end(), more.begin(), more.end());
    check_same_losses(place, flags, 1e-12);
  }
}

TEST_CASE("dp has ddp's losses with tied weights, dropout, buffers and pictures") {
  const Workplace place;
  check_same_losses(
      place, {"--ranks", "2",       "--model",   "gpt",       "--data",  place.text(), "--layers",
              "1",       "--width", "16",        "--context", "8",       "--batch",    "2",
              "--steps", "10",      "--dropout", "0.1",       "--dtype", "fp64"},
      1e-12);
  check_same_losses(place,
                    {"--ranks", "2", "--model", "cnn", "--data", place.pictures(), "--classes", "4",
                     "--width", "4", "--batch", "4", "--steps", "10", "--dtype", "fp64"},
                    1e-12);
}

TEST_CASE("dp's bytes are a star's: everything leaves rank 0 once for each other rank") {
  const Workplace place;
  const Words flags = {"--ranks", "4",       "--data", place.text(), "--width",
                       "32",      "--batch", "2",      "--steps",    "5"};
  const json summary = place.train(flags, "dp")["summary"];
  const json& sent = summary["bytes_sent_per_step_by_rank"];
  const double gradients = summary["gradient_bytes_per_step"];
  REQUIRE(sent.size() == 4);
  CHECK(sent[0].get<double>() == summary["bytes_formula_per_step"].get<double>());
  CHECK(sent[0].get<double>() > 3 * gradients);  // the parameters, and the samples
  for (size_t r = 1; r < 4; ++r) CHECK(sent[r].get<double>() == gradients + sizeof(double));
  CHECK(summary["buckets"].size() == 1);
  CHECK(summary["buckets"][0]["algorithm"] == "star");
  // The same fields, so that one table can hold both.
  const json ddp = place.train(flags, "ddp")["summary"];
  for (const char* field :
       {"step_ms", "compute_ms", "comm_us", "exposed_comm_ms", "hidden_fraction", "samples_per_s",
        "gradient_bytes_per_step", "bytes_sent_per_step_by_rank", "final_loss", "parameter_hash"}) {
    INFO(field);
    CHECK(summary.contains(field));
    CHECK(ddp.contains(field));
  }
}

// Where a star is dear the tuner would add up round a ring: in another order, with other bits.
TEST_CASE("dp's gradients go by the star whatever the tuner would choose") {
  const Workplace place;
  const rondo::trainer::testing::Workplace with_links;
  Words dear = kNoLauncher;
  dear.push_back("RONDO_LINKS=" + rondo::trainer::testing::links(with_links, "peer_us"));
  const Words flags = {"--ranks", "3",       "--data", place.text(), "--width",
                       "32",      "--batch", "2",      "--steps",    "5"};
  const json free_choice = place.train(flags, "ddp", dear)["summary"];
  CHECK(free_choice["buckets"][0]["algorithm"] == "ring");
  CHECK(place.train(flags, "dp", dear)["summary"]["parameter_hash"] ==
        place.train(flags, "dp")["summary"]["parameter_hash"]);
}

TEST_CASE("dp refuses by name what only ddp has") {
  const Workplace place;
  const std::vector<std::pair<Words, std::string>> refused = {
      {{"--checkpoint-dir", place.file("c")}, "--checkpoint-dir"},
      {{"--join"}, "--join"},
      {{"--data", place.file("{rank}")}, "{rank}"},
      {{"--accum", "2"}, "--accum"},
      {{"--algorithm", "ring"}, "--algorithm"},
      {{"--bucket-cap-mb", "1"}, "--bucket-cap-mb"},
      {{"--no-overlap"}, "--no-overlap"},
      {{"--average", "ranks"}, "--average"},
      {{"--compress", "bf16"}, "--compress"},
      {{"--dtype", "fp16"}, "--dtype"},
      {{"--model", "gpt", "--tied-rows", "touched"}, "--tied-rows"},
      {{"--model", "gpt", "--layer-drop", "0.5"}, "--layer-drop"},
      {{"--model", "cnn", "--data", place.pictures(), "--sync-batch-norm"}, "--sync-batch-norm"},
      {{"--break", "straggler"}, "--break"}};
  for (const auto& [flags, named] : refused) {
    Words words = flags;
    words.insert(words.end(), {"--strategy", "dp"});
    const ProgramResult result = place.run(words);
    INFO(named << ": " << result.err);
    CHECK(result.exit_code != 0);
    CHECK(result.err.find("--strategy dp") != std::string::npos);
    CHECK(result.err.find(named) != std::string::npos);
  }
}

TEST_CASE("a diverging loss ends every rank of dp") {
  const Workplace place;
  const ProgramResult result =
      place.run({"--ranks", "2", "--strategy", "dp", "--data", place.text(), "--width", "32",
                 "--lr", "1e5", "--steps", "200"});
  CHECK(!result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK(result.err.find("the loss became") != std::string::npos);
}

}  // namespace rondo::trainer::strategy_dp_test
