// The command line: defaults, bounds, and messages that hold the offending value.
#include "trainer/cli/options.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/words.hpp"
#include "trainer/report/report.hpp"

namespace rondo::trainer::options_test {

using namespace testing;  // NOLINT: the trainer's
using rondo::testing::contains;

namespace {

struct Attempt {
  Parsed parsed;
  std::string complaint;
};

/// Parses with both outputs caught.
Attempt parse(const Words& flags) {
  std::vector<const char*> words = {"rondo-train"};
  for (const std::string& flag : flags) words.push_back(flag.c_str());
  std::ostringstream complaint;
  std::streambuf* const saved_error = std::cerr.rdbuf(complaint.rdbuf());
  std::streambuf* const saved_out = std::cout.rdbuf(complaint.rdbuf());
  Attempt attempt{.parsed = parse_options(static_cast<int>(words.size()), words.data()),
                  .complaint = {}};
  std::cerr.rdbuf(saved_error);
  std::cout.rdbuf(saved_out);
  attempt.complaint = complaint.str();
  return attempt;
}
TrainOptions parse_ok(const Words& flags) {
  const Attempt attempt = parse(flags);
  INFO(attempt.complaint);
  REQUIRE(attempt.parsed.options);
  return *attempt.parsed.options;
}
/// Its complaint names each of these.
void check_refused(const Words& flags, const Words& named) {
  const Attempt attempt = parse(flags);
  INFO(nlohmann::json(flags).dump());
  CHECK(!attempt.parsed.options);
  CHECK(attempt.parsed.exit_code != 0);
  for (const std::string& name : named) CHECK_THAT(attempt.complaint, contains(name));
}

/// That its values are these, as JSON.
void check_values(const TrainOptions& options, const char* expected) {
  const nlohmann::ordered_json values = to_json(options);
  const auto wanted = nlohmann::ordered_json::parse(expected);
  for (const auto& [key, value] : wanted.items()) {
    INFO(key);
    CHECK(values[key] == value);
  }
}

}  // namespace

TEST_CASE("options: every flag arrives") {
  const TrainOptions o = parse_ok(
      "--model mlp --layers 3 --width 64 --data x --epochs 2 --batch 5 --accum 4 --seed 9"_words +
      "--lr 0.5 --momentum 0 --dtype fp64 --ranks 3 --compute-threads 2 --bucket-cap-mb 0.5"_words +
      "--pace 1GB/s,20us --log-every 0 --json j --trace t --no-overlap --elastic"_words +
      "--min-ranks 2 --control-steps 4"_words);
  check_values(o, R"({"layers": 3, "width": 64, "data": "x", "epochs": 2, "steps": 0, "batch": 5,
    "accum": 4, "seed": 9, "lr": 0.5, "momentum": 0, "dtype": "fp64", "compute_threads": 2,
    "bucket_cap_mb": 0.5, "pace": "1GB/s,20us", "overlap": false, "control_steps": 4,
    "elastic": true})");
  CHECK(o.type() == DataType::kFloat64);
  CHECK(o.ranks == 3);
  CHECK(o.log_every == 0);
  CHECK(o.json == "j");
  CHECK(o.trace == "t");
  CHECK(o.min_ranks == 2);
  CHECK(parse_ok("--threads 2"_words).compute_threads == 2);  // as it was called
  const TrainOptions scaling = parse_ok("--scaling 1,2,4 --strong"_words);
  CHECK(scaling.scaling == std::vector<uint64_t>{1, 2, 4});
  CHECK(scaling.strong);
}

TEST_CASE("options: bad values are refused by name and value") {
  const std::pair<std::string, Words> bad[] = {
      {"--batch", {"0", "-3", "many"}},
      {"--steps", {"0"}},
      {"--accum", {"0"}},
      {"--lr", {"nan", "-1", "inf"}},
      {"--momentum", {"1"}},
      {"--width", {"500", "0"}},
      {"--layers", {"0"}},
      {"--ranks", {"0", "1025"}},
      {"--compute-threads", {"0"}},
      {"--scaling", {"1025", "two"}},
      {"--algorithm", {"flat", "copy-engine", "one-shot-direct", "two-shot-direct", "quick"}},
      {"--dtype", {"int3"}},
      {"--optimizer", {"lion"}},
      {"--model", {"llama"}},
      {"--seed", {"-1", "9223372036854775808"}},
      {"--warmup", {"18446744073709551616"}},
      {"--log-every", {"-99999999999999999999"}},
      {"--bucket-cap-mb", {"-1", "-inf", "automatic"}},
      {"--clip", {"nan"}},
      {"--dropout", {"1"}},
      {"--workers", {"-1"}},
      {"--compress", {"int8"}},
      {"--average-over", {"median"}},
      {"--strategy", {"fsdp"}},
      {"--device", {"cuda:0,", "cuda:"}},
      {"--zero", {"2", "3", "yes"}},
      {"--break", {"everything"}},
      {"--no-such-flag", {"1"}}};
  for (const auto& [flag, values] : bad) {
    for (const std::string& value : values) check_refused({flag, value}, {flag, value});
  }
  check_refused("--scaling 1,two"_words, {"--scaling", "two"});
  check_refused("--algorithm copy-engine"_words,
                {"cannot do all of a run's all-reduces: use auto|ring|"});
  CHECK(parse({"--help"}).parsed.exit_code == 0);
  CHECK(parse_ok("--seed 9223372036854775807"_words).seed == 9223372036854775807);
}

TEST_CASE("options: what a model does not say is its own") {
  check_values(parse_ok({}), R"({"layers": 2, "width": 512, "steps": 100, "dtype": "fp32"})");
  check_values(parse_ok("--model gpt"_words), R"({"layers": 4, "width": 128, "heads": 4,
    "context": 64, "vocabulary": 256, "optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01})");
  check_values(parse_ok("--model gpt --data-format tokens"_words), R"({"vocabulary": 50257})");
  check_values(parse_ok("--model cnn --data x"_words),
               R"({"width": 16, "data_format": "images", "optimizer": "sgd", "lr": 0.02})");
}

TEST_CASE("options: flags that do not go together are refused, both named") {
  // The last flag is what does not go with the rest.
  const std::pair<std::string, std::vector<std::string>> bad[] = {
      {"", {"--heads 8", "--no-split-tied", "--model cnn", "--resume", "--strong"}},
      {"", {"--lr-scale linear", "--min-lr 0.1", "--base-batch 4", "--validate-every 3"}},
      {"", {"--min-ranks 2", "--checkpoint-every 2"}},
      {"--steps 5", {"--epochs 2"}},
      {"--model mlp", {"--dropout 0.1", "--data-format tokens", "--context 99"}},
      {"--model gpt", {"--width 100 --heads 3", "--sync-batch-norm"}},
      {"--model gpt --no-split-tied", {"--tied-rows whole"}},
      {"--model gpt --device cuda", {"--tied-rows whole", "--width 1024 --heads 4"}},
      {"--model gpt --optimizer sgd", {"--beta2 0.95"}},
      {"--model gpt --save-weights x", {"--checkpoint-dir ./x"}},
      {"--optimizer adamw", {"--momentum 0.5"}},
      {"--optimizer sgd", {"--beta1 0.8"}},
      {"--bucket-cap-mb auto", {"--zero 1"}},
      {"--dtype fp64", {"--compress bf16"}},
      {"--dtype bf16", {"--compress fp16"}},
      {"--dtype fp32", {"--tf32"}},
      {"--device cuda", {"--dtype fp64", "--compute-threads 2", "--pace 1GB/s,20us"}},
      {"--device cuda --dtype bf16", {"--tf32"}},
      {"--device cuda --reproducible", {"--dtype bf16", "--zero 1 --clip 1"}},
      {"--strategy dp", {"--bucket-cap-mb auto", "--elastic"}},
      {"--strategy dp --device cuda", {"--dtype bf16"}},
      {"--checkpoint-dir x", {"--break straggler"}},
      {"--ranks 2", {"--scaling 1,2"}},
      {"--scaling 1,2", {"--trace t"}},
      {"--elastic", {"--ranks 2 --min-ranks 3", "--zero 1"}},
      {"--data x{rank}", {"--elastic"}},
      {"--json x", {"--trace x", "--trace ./none/../x"}},
      {"--trace x", {"--save-weights x"}}};
  for (const auto& [first, lasts] : bad) {
    for (const std::string& last : lasts) {
      const Words words = words_of(first + " " + last);
      const bool value_last = words.back()[0] != '-';
      check_refused(words, {value_last ? words[words.size() - 2] : words.back()});
    }
  }
}

TEST_CASE("options: --strategy dp refuses by name what only ddp has") {
  for (const char* flags :
       {"--checkpoint-dir c", "--join", "--data x{rank}", "--accum 2", "--algorithm ring",
        "--bucket-cap-mb 1", "--no-overlap", "--average-over ranks", "--compress bf16",
        "--dtype fp16", "--tied-rows touched --model gpt", "--layer-drop 0.5 --model gpt",
        "--sync-batch-norm --model cnn --data x", "--break straggler"}) {
    const Words words = words_of(flags);
    check_refused("--strategy dp"_words + words, {"--strategy dp does not go with ", words[0]});
  }
}

TEST_CASE("options: a bucket cap is a number, or auto") {
  const TrainOptions automatic = parse_ok("--bucket-cap-mb auto"_words);
  CHECK(automatic.auto_buckets());
  CHECK(to_json(automatic)["bucket_cap_mb"] == "auto");
  const TrainOptions fixed = parse_ok("--bucket-cap-mb 0"_words);
  CHECK_FALSE(fixed.auto_buckets());
  CHECK(to_json(fixed)["bucket_cap_mb"] == 0);
}

TEST_CASE("options: - is no name of a file, as stdout has lines already") {
  for (const std::string flag : {"--json", "--trace"}) {
    check_refused({flag, "-"}, {flag + ": - is not a file"});
  }
}

TEST_CASE("options: two names of one file are refused, also of one that a symlink will make") {
  const rondo::testing::TempDirectory folder;
  const std::string file = folder.path() + "/file", link = folder.path() + "/link";
  std::filesystem::create_symlink("file", link);
  check_refused({"--json", file, "--trace", link}, {});
  std::ofstream(file) << "there";
  check_refused({"--json", file, "--trace", link}, {});
  parse_ok({"--json", file, "--trace", file + "2"});
  parse_ok("--json /dev/null --trace /dev/null"_words);
}

TEST_CASE("options: a default, given, is not refused") {
  parse_ok("--min-lr 0"_words);
  parse_ok("--min-lr 0.0"_words);
  parse_ok("--heads 4 --context 64"_words);
  parse_ok("--dtype bf16 --compress none"_words);
}

TEST_CASE("options: --help has every default") {
  const std::string help = parse({"--help"}).complaint;
  const Words plain =
      "--model=mlp --heads=4 --context=64 --classes=10 --dropout=0 --workers=4 --steps=100"_words +
      "--sampler-tail=pad --batch=32 --accum=1 --seed=0 --momentum=0.9 --beta1=0.9"_words +
      "--beta2=0.999 --lr-decay=constant --min-lr=0 --dtype=fp32 --strategy=ddp"_words +
      "--algorithm=auto --compute-threads,--threads=1 --bucket-cap-mb=25 --average-over=terms --compress=none"_words +
      "--tied-rows=auto --zero=0 --checkpoint-keep=2 --log-every=1"_words + "--break=none"_words;
  const Words in_words = {"--layers=mlp 2, cnn 2, gpt 4",
                          "--width=mlp 512, cnn 16, gpt 128",
                          "--vocabulary=bytes 256, tokens 50257",
                          "--data=rondo's licence",
                          "--data-format=cnn images, else bytes",
                          "--optimizer=gpt adamw, else sgd",
                          "--lr=sgd 0.02, adamw 0.001",
                          "--weight-decay=sgd 0, adamw 0.01",
                          "--ranks=the launcher's, else 1",
                          "--control-steps=a tenth of the steps, at most 10; none below 30"};
  for (const std::string& each : plain + in_words) {
    const std::string flag = each.substr(0, each.find('=')), value = each.substr(flag.size() + 1);
    const size_t at = help.find("  " + flag + " ");
    INFO(flag);
    REQUIRE(at != std::string::npos);
    const std::string option = help.substr(at, help.find("\n  --", at + 1) - at);
    // As one version of CLI11 or another writes it.
    CHECK_THAT(option, contains("=" + value) || contains("[" + value + "]"));
  }
}

TEST_CASE("report: median") {
  CHECK(median({}) == 0);
  CHECK(median({3}) == 3);
  CHECK(median({9, 1, 4}) == 4);
  CHECK(median({9, 1, 4, 2}) == 3);
}

}  // namespace rondo::trainer::options_test
