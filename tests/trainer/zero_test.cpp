// rondo-train --zero 1 as a program, with ranks as processes: the same losses as without, less
// memory per rank, the same bytes; checkpoints of which every rank writes its shard, and which any
// number of ranks, with or without shards, goes on from.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/synthetic_data.hpp"
#include "trainer/base/random.hpp"

namespace rondo::trainer::zero_test {

using nlohmann::json;
using rondo::testing::kSanitized;
using rondo::testing::ProgramResult;
using rondo::testing::run_program;
using rondo::testing::TempDirectory;

namespace {

using Words = std::vector<std::string>;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Workplace {
 public:
  Workplace() {
    const char* words[] = {"ring ", "gradient ", "all-reduce ", "slot\n", "of ", "the "};
    std::ofstream file(this->file("data.txt"));
    for (uint64_t i = 0; i < 5000; ++i) file << words[rondo::trainer::mix(i) % 6];
  }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  ProgramResult run(const Words& flags, const std::string& data = "data.txt") const {
    return run_program(
        Words{RONDO_TRAIN, "--data", file(data), "--json", file("json"), "--log-every", "0"} +
            flags,
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
        std::chrono::seconds{120});
  }
  /// A run that must succeed; its JSON document.
  json train(const Words& flags, const std::string& data = "data.txt") const {
    const ProgramResult result = run(flags, data);
    INFO(result.err);
    REQUIRE(!result.timed_out);
    REQUIRE(result.exit_code == 0);
    errors_ = result.err;
    return json::parse(read_text(file("json")));
  }
  /// Of the last run that succeeded.
  const std::string& errors() const { return errors_; }

 private:
  TempDirectory folder_;
  mutable std::string errors_;
};

std::vector<double> losses_of(const json& document) {
  std::vector<double> losses;
  for (const json& step : document["steps"]) losses.push_back(step["loss"]);
  return losses;
}

const Words kPlain = {"--zero", "0"}, kZero = {"--zero", "1"};
// Several buckets, tensors of more than one unit, and rows that do not divide a unit.
const Words kMlp = {"--width",     "96",    "--batch",         "4",
                    "--optimizer", "adamw", "--bucket-cap-mb", "0.05"};
const Words kGpt = {"--model", "gpt", "--layers",  "2",  "--heads",         "2",   "--width", "48",
                    "--batch", "2",   "--context", "16", "--bucket-cap-mb", "0.05"};

/// The same bits: losses, norms, parameters.
void check_same_bits(const Workplace& place, const Words& flags) {
  INFO(json(flags).dump());
  const json plain = place.train(flags + kPlain), zero = place.train(flags + kZero);
  const std::vector<double> losses = losses_of(plain);
  CHECK(losses == losses_of(zero));
  CHECK(losses.back() < losses.front());
  CHECK(plain["summary"]["parameter_hash"] == zero["summary"]["parameter_hash"]);
  for (size_t s = 0; s < losses.size(); ++s) {
    CHECK(plain["steps"][s].value("gradient_norm", 0.0) ==
          zero["steps"][s].value("gradient_norm", 0.0));
    CHECK(plain["steps"][s].value("skipped", false) == zero["steps"][s].value("skipped", false));
  }
}

}  // namespace

TEST_CASE("zero: reproducible, the bits of plain data parallelism, for N = 1, 2, 3, 5") {
  const Workplace place;
  const Words common = {"--steps", "12", "--reproducible"};
  for (const std::string ranks : {"1", "2", "3", "5"}) {
    if (kSanitized && ranks != "3") continue;
    check_same_bits(place, kMlp + common + Words{"--ranks", ranks});
    check_same_bits(place, kMlp + common + Words{"--ranks", ranks, "--clip", "0.2"});
  }
  check_same_bits(
      place,
      kMlp + common + Words{"--ranks", "3", "--dtype", "fp64", "--accum", "2", "--clip", "0.2"});
  check_same_bits(place, Words{"--width", "96", "--batch", "4", "--lr", "0.1", "--ranks", "3",
                               "--optimizer", "sgd", "--no-overlap"} +
                             common);
}

TEST_CASE("zero: tied weights, dropped layers, low precision, compression: the same bits") {
  const Workplace place;
  const Words common = kGpt + Words{"--steps", "12", "--reproducible", "--ranks", "3"};
  check_same_bits(place, common + Words{"--clip", "0.5", "--tied-rows", "touched"});
  check_same_bits(place, common + Words{"--dtype", "fp16", "--clip", "0.5"});
  check_same_bits(place, common + Words{"--compress", "bf16", "--no-split-tied"});
  if (kSanitized) return;  // the same code, in other orders or widths
  check_same_bits(place, common + Words{"--clip", "0.5", "--tied-rows", "whole"});
  check_same_bits(place, common + Words{"--layer-drop", "0.4", "--clip", "0.5"});
  check_same_bits(place, common + Words{"--dtype", "bf16", "--clip", "0.5"});
}

TEST_CASE("zero: losses follow plain's within 1e-6 where sums have no fixed order") {
  const Workplace place;
  for (const std::string ranks : {"3", "4"}) {
    if (kSanitized && ranks != "3") continue;
    const Words flags = kMlp + Words{"--steps", "20", "--ranks", ranks};
    const std::vector<double> plain = losses_of(place.train(flags + kPlain));
    const std::vector<double> zero = losses_of(place.train(flags + kZero));
    REQUIRE(plain.size() == 20);
    REQUIRE(zero.size() == 20);
    for (size_t s = 0; s < 20; ++s) CHECK(zero[s] == Approx(plain[s]).epsilon(1e-6));
  }
}

TEST_CASE("zero: a step that overflows is skipped by all ranks, as in plain") {
  const Workplace place;
  // A rate at which the second step's gradients are too large for float16.
  const Words flags = {"--width", "96",      "--batch", "4",       "--optimizer", "adamw",   "--lr",
                       "0.1",     "--ranks", "2",       "--dtype", "fp16",        "--steps", "12"};
  const json plain = place.train(flags + kPlain), zero = place.train(flags + kZero);
  int skipped = 0;
  for (size_t s = 0; s < 12; ++s) {
    const bool is = zero["steps"][s].value("skipped", false);
    skipped += is ? 1 : 0;
    CHECK(is == plain["steps"][s].value("skipped", false));
  }
  CHECK(skipped > 0);
  CHECK(losses_of(plain) == losses_of(zero));
}

TEST_CASE("zero: ranks that run out of data join") {
  const Workplace place;
  for (const int rank : {0, 1, 2}) {  // 25, 15 and 5 samples
    std::ofstream(place.file("own" + std::to_string(rank)))
        << std::string(static_cast<size_t>(41 - 10 * rank), static_cast<char>('x' + rank));
  }
  const auto losses = [&](const Words& zero) {
    return losses_of(place.train(Words{"--epochs", "2", "--batch", "2", "--width", "96", "--ranks",
                                       "3", "--join", "--reproducible"} +
                                     zero,
                                 "own{rank}"));
  };
  const std::vector<double> plain = losses(kPlain);
  CHECK(plain.size() == 26);
  CHECK(plain == losses(kZero));
}

TEST_CASE("zero: the optimizer's state is cut, the bytes that travel are not more") {
  const Workplace place;
  for (const int ranks : {2, 3}) {
    if (kSanitized && ranks != 3) continue;
    const Words flags = {
        "--ranks", std::to_string(ranks), "--steps", "3", "--batch", "2", "--optimizer",
        "adamw",   "--bucket-cap-mb",     "1"};
    const json plain = place.train(flags + kPlain)["summary"];
    const json zero = place.train(flags + kZero)["summary"];
    const size_t whole = 2 * 4 * 664832;
    CHECK(plain["optimizer_bytes"] == whole);
    CHECK(zero["optimizer_bytes_without_zero"] == whole);
    CHECK(zero["optimizer_bytes"].get<double>() ==
          Approx(static_cast<double>(whole) / ranks).epsilon(0.05));
    CHECK(place.errors().find("with --zero 0: 5.07") != std::string::npos);
    CHECK(place.errors().find("reduce-scatters during backward") != std::string::npos);
    double sum = 0;
    for (const json& bytes : zero["bytes_sent_per_step_by_rank"]) sum += bytes.get<double>();
    CHECK(sum == Approx(ranks * zero["bytes_formula_per_step"].get<double>()).epsilon(0.01));
    CHECK(zero["bytes_formula_per_step"] == plain["bytes_formula_per_step"]);
    double costs_ms = 0;
    for (const json& bucket : zero["buckets"]) {
      CHECK(bucket["gather_cost_ms"].get<double>() > 0);
      costs_ms += bucket["cost_ms"].get<double>() + bucket["gather_cost_ms"].get<double>();
    }
    CHECK(zero["accounting"]["cost_ms"].get<double>() == Approx(costs_ms));
    CHECK(!plain["buckets"][0].contains("gather_cost_ms"));
  }
}

namespace {

/// Of `name` in a step; {-1, -1}: there is none. Rank 0's.
std::pair<double, double> span_of(const json& trace, const std::string& name, int step) {
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["name"] == name && event["args"]["step"] == step &&
        event["pid"] == 0) {
      return {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
    }
  }
  return {-1, -1};
}

}  // namespace

TEST_CASE("zero: the trace shows reduce-scatters in backward, and gathers behind the update") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  place.train(kMlp + kZero + Words{"--ranks", "2", "--steps", "3", "--trace", file});
  const json trace = json::parse(read_text(file));
  for (int step = 1; step <= 3; ++step) {
    const auto reduced = span_of(trace, "reduce-scatter bucket 0", step);
    CHECK(reduced.first <= span_of(trace, "wait for communication", step).second);
    const auto first = span_of(trace, "all-gather bucket 1", step);
    const auto last = span_of(trace, "all-gather bucket 0", step);
    const auto update = span_of(trace, "optimizer", step);
    const auto wait = span_of(trace, "wait for parameters", step);
    REQUIRE(reduced.first >= 0);
    CHECK(reduced.second <= update.first);
    CHECK(first.first >= update.first);
    CHECK(first.second <= last.second);  // the last bucket goes first
    CHECK(last.second <= wait.second);
    if (step == 3) continue;
    // The next samples are fetched before anybody waits for parameters; forward begins behind.
    CHECK(span_of(trace, "data", step + 1).second <= wait.first + 1);
    CHECK(span_of(trace, "forward", step + 1).first >= wait.second - 1);
  }
}

// On links so slow that headers are still on their way, after the gathers, when samples are there.
TEST_CASE("zero: samples are read before a step waits for parameters or headers, by every model") {
  const Workplace place;
  testing::write_pictures(place.file("images"), "train", 40, 12, 10, 1);
  const std::string file = place.file("trace.json");
  for (const Words& more : {Words{}, Words{"--sync-batch-norm"}, Words{"--join"}}) {
    INFO(json(more).dump());
    place.train(Words{"--model", "cnn", "--width", "4", "--batch", "3", "--ranks", "2", "--steps",
                      "6", "--pace", "1GB/s,50ms", "--trace", file} +
                    kZero + more,
                "images");
    const json trace = json::parse(read_text(file));
    int before_headers = 0;
    for (int step = 2; step <= 6; ++step) {
      const auto data = span_of(trace, "data", step);
      CHECK(data.second <= span_of(trace, "wait for parameters", step - 1).first + 1);
      if (data.first < span_of(trace, "all-gather of headers", step).second) ++before_headers;
    }
    CHECK(before_headers > 0);
  }
}

namespace {

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().native());
  }
  return names;
}

/// Six steps at once, against three, and three more by another run of the program.
void check_resume(const Words& flags, const Words& first, const Words& then, bool same_bits) {
  INFO(json(first).dump() << " then " << json(then).dump());
  const Workplace place;
  const std::vector<double> whole = losses_of(place.train(flags + first + Words{"--steps", "6"}));
  const Words folder = {"--checkpoint-dir", place.file("checkpoints")};
  place.train(flags + first + folder + Words{"--steps", "3"});
  const std::vector<double> rest =
      losses_of(place.train(flags + then + folder + Words{"--steps", "6", "--resume"}));
  REQUIRE(rest.size() == 3);
  for (size_t s = 0; s < 3; ++s) {
    INFO("step " << s + 4);
    if (same_bits) {
      CHECK(rest[s] == whole[s + 3]);
    } else {
      CHECK(rest[s] == Approx(whole[s + 3]).epsilon(1e-5));
    }
  }
}

Words ranks(int n, const Words& zero) {
  // The same global batch for every number of ranks.
  return zero + Words{"--ranks", std::to_string(n), "--batch", std::to_string(12 / n)};
}

}  // namespace

TEST_CASE("zero: every rank writes its shard of a checkpoint") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  place.train(
      kMlp + kZero +
      Words{"--ranks", "3", "--steps", "4", "--checkpoint-dir", folder, "--checkpoint-every", "1"});
  CHECK(files_in(folder) ==
        std::set<std::string>{".lock", "latest", "step-00000003", "step-00000004"});
  CHECK(files_in(folder + "/step-00000004") ==
        std::set<std::string>{"model.safetensors", "optimizer-0.safetensors",
                              "optimizer-1.safetensors", "optimizer-2.safetensors", "state.json"});
  uintmax_t shards = 0;
  const auto bytes = [&](const std::string& name) {
    return std::filesystem::file_size(folder + "/step-00000004/" + name);
  };
  for (const char* rank : {"0", "1", "2"}) {
    const uintmax_t shard = bytes(std::string("optimizer-") + rank + ".safetensors");
    CHECK(shard < bytes("model.safetensors"));  // a third of twice as much
    shards += shard;
  }
  CHECK(static_cast<double>(shards) ==
        Approx(2.0 * static_cast<double>(bytes("model.safetensors"))).epsilon(0.1));
}

TEST_CASE("zero: resuming gives the same bits, with shards, without, and with them again") {
  const Words mlp = {"--width",         "96",   "--optimizer",   "adamw",
                     "--bucket-cap-mb", "0.05", "--reproducible"};
  check_resume(mlp, ranks(3, kZero), ranks(3, kPlain), true);
  check_resume(mlp, ranks(3, kPlain), ranks(3, kZero), true);
  if (!kSanitized) check_resume(mlp, ranks(3, kZero), ranks(3, kZero), true);
  const Words sgd = {"--width", "96", "--reproducible", "--momentum", "0"};  // no state at all
  check_resume(sgd, ranks(2, kZero), ranks(2, kZero), true);
  const Words gpt = kGpt + Words{"--reproducible", "--dtype", "fp16", "--clip", "0.5"};
  check_resume(gpt, kZero + Words{"--ranks", "2"}, kZero + Words{"--ranks", "2"}, true);
}

TEST_CASE("zero: resuming on another number of ranks, with or without shards") {
  const Words mlp = {"--width", "96", "--optimizer", "adamw", "--bucket-cap-mb", "0.05"};
  check_resume(mlp, ranks(3, kZero), ranks(2, kZero), false);
  check_resume(mlp, ranks(1, kPlain), ranks(3, kZero), false);
  if (kSanitized) return;  // the same code: shards that are cut anew, and whole states that are
  check_resume(mlp, ranks(2, kZero), ranks(4, kZero), false);
  check_resume(mlp, ranks(4, kZero), ranks(1, kPlain), false);
}

TEST_CASE("zero: validation and saved weights see what all ranks have updated") {
  const Workplace place;
  const auto with = [&](const Words& zero, const std::string& name) {
    const json document = place.train(
        kGpt + zero +
        Words{"--ranks", "3", "--steps", "4", "--reproducible", "--validation",
              place.file("data.txt"), "--validate-every", "2", "--save-weights", place.file(name)});
    REQUIRE(document["validation"].size() == 2);
    return document["validation"];
  };
  // Paced: who does not wait for parameters finds old ones.
  CHECK(with(kPlain, "plain") == with(kZero + Words{"--pace", "1GB/s,5ms"}, "zero"));
  CHECK(read_text(place.file("plain")) == read_text(place.file("zero")));
}

TEST_CASE("zero: a rank that does not see the checkpoints' folder fails all, and the save") {
  const Workplace place;
  const std::string command = "mkdir -p '" + place.file("") + "'$RANK && cd '" + place.file("") +
                              "'$RANK && exec '" RONDO_TRAIN "' --data '" + place.file("data.txt") +
                              "' --width 32 --steps 2 --zero 1 --checkpoint-dir here";
  const ProgramResult result = run_program({RONDO_RUN, "-n", "2", "--", "sh", "-c", command},
                                           {"RANK", "WORLD_SIZE"}, std::chrono::seconds{60});
  INFO(result.err);
  CHECK(!result.timed_out);
  CHECK(result.exit_code != 0);
  // Whoever speaks first says all of it.
  CHECK(result.err.find("rank 1: ") != std::string::npos);
  CHECK(result.err.find("all must see it") != std::string::npos);
  CHECK(files_in(place.file("0/here")) == std::set<std::string>{".lock"});
}

TEST_CASE("zero: a shard that is missing or another checkpoint's is named") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words flags = kMlp + kZero + Words{"--ranks", "2", "--checkpoint-dir", folder};
  place.train(flags + Words{"--steps", "2", "--checkpoint-every", "1"});
  const std::string shard = "/optimizer-1.safetensors";
  std::filesystem::copy_file(folder + "/step-00000001" + shard, folder + "/step-00000002" + shard,
                             std::filesystem::copy_options::overwrite_existing);
  const auto refused = [&](const std::vector<std::string>& parts) {
    const ProgramResult result = place.run(flags + Words{"--steps", "4", "--resume"});
    INFO(result.err);
    CHECK(result.exit_code != 0);
    for (const std::string& part : parts) CHECK(result.err.find(part) != std::string::npos);
  };
  refused({shard, "does not belong", "step-00000001"});
  std::filesystem::remove(folder + "/step-00000002" + shard);
  refused({shard, "cannot be opened"});
}

TEST_CASE("zero: stages that are not there are refused by name") {
  const Workplace place;
  for (const std::string stage : {"2", "3", "yes"}) {
    const ProgramResult result = place.run({"--zero", stage, "--steps", "1"});
    CHECK(result.exit_code != 0);
    CHECK(result.err.find("--zero") != std::string::npos);
    CHECK(result.err.find("'" + stage + "'") != std::string::npos);
  }
}

}  // namespace rondo::trainer::zero_test
