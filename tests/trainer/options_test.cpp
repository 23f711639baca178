// The command line: defaults, bounds, and messages that hold the offending value.
#include "trainer/cli/options.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "trainer/report/report.hpp"

using namespace rondo::trainer;

namespace {

struct Attempt {
  Parsed parsed;
  std::string complaint;
};

/// Parses with both outputs caught.
Attempt parse(std::vector<const char*> words) {
  words.insert(words.begin(), "rondo-train");
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

}  // namespace

TEST_CASE("options: defaults") {
  const Attempt attempt = parse({});
  REQUIRE(attempt.parsed.options);
  const TrainOptions& o = *attempt.parsed.options;
  CHECK(o.model == "mlp");
  CHECK(o.layers == 2);
  CHECK(o.width == 512);
  CHECK(o.batch == 32);
  CHECK(o.accum == 1);
  CHECK(o.steps == 100);
  CHECK(o.momentum == 0.9);
  CHECK(o.bucket_cap_mb == 25);
  CHECK(o.type() == rondo::DataType::kFloat32);
}

TEST_CASE("options: every flag arrives") {
  const Attempt attempt = parse({"--model",
                                 "mlp",
                                 "--layers",
                                 "3",
                                 "--width",
                                 "64",
                                 "--data",
                                 "x",
                                 "--epochs",
                                 "2",
                                 "--batch",
                                 "5",
                                 "--accum",
                                 "4",
                                 "--seed",
                                 "9",
                                 "--lr",
                                 "0.5",
                                 "--momentum",
                                 "0",
                                 "--dtype",
                                 "fp64",
                                 "--ranks",
                                 "3",
                                 "--threads",
                                 "2",
                                 "--bucket-cap-mb",
                                 "0.5",
                                 "--pace",
                                 "1GB/s,20us",
                                 "--log-every",
                                 "0",
                                 "--json",
                                 "j",
                                 "--trace",
                                 "t",
                                 "--no-overlap",
                                 "--elastic",
                                 "--min-ranks",
                                 "2",
                                 "--control-steps",
                                 "4"});
  INFO(attempt.complaint);
  REQUIRE(attempt.parsed.options);
  const TrainOptions& o = *attempt.parsed.options;
  CHECK(o.layers == 3);
  CHECK(o.width == 64);
  CHECK(o.data == "x");
  CHECK(o.epochs == 2);
  CHECK(o.steps == 0);
  CHECK(o.batch == 5);
  CHECK(o.accum == 4);
  CHECK(o.seed == 9);
  CHECK(o.lr == 0.5);
  CHECK(o.momentum == 0);
  CHECK(o.type() == rondo::DataType::kFloat64);
  CHECK(o.ranks == 3);
  CHECK(o.threads == 2);
  CHECK(o.bucket_cap_mb == 0.5);
  CHECK(o.pace == "1GB/s,20us");
  CHECK(o.log_every == 0);
  CHECK(o.json == "j");
  CHECK(o.trace == "t");
  CHECK(o.no_overlap);
  CHECK(o.control_steps == 4);
  CHECK(o.elastic);
  CHECK(o.min_ranks == 2);
}

TEST_CASE("options: bad values are refused by name and value") {
  const std::vector<std::vector<const char*>> bad = {{"--batch", "0"},
                                                     {"--batch", "-3"},
                                                     {"--batch", "many"},
                                                     {"--steps", "0"},
                                                     {"--accum", "0"},
                                                     {"--lr", "nan"},
                                                     {"--lr", "-1"},
                                                     {"--lr", "inf"},
                                                     {"--momentum", "1"},
                                                     {"--width", "500"},
                                                     {"--width", "0"},
                                                     {"--layers", "0"},
                                                     {"--ranks", "0"},
                                                     {"--threads", "0"},
                                                     {"--ranks", "1025"},
                                                     {"--scaling", "1025"},
                                                     {"--algorithm", "flat"},
                                                     {"--algorithm", "copy-engine"},
                                                     {"--algorithm", "one-shot-direct"},
                                                     {"--algorithm", "two-shot-direct"},
                                                     {"--algorithm", "quick"},
                                                     {"--dtype", "int3"},
                                                     {"--optimizer", "lion"},
                                                     {"--model", "llama"},
                                                     {"--seed", "-1"},
                                                     {"--seed", "9223372036854775808"},
                                                     {"--warmup", "18446744073709551616"},
                                                     {"--log-every", "-99999999999999999999"},
                                                     {"--bucket-cap-mb", "-1"},
                                                     {"--bucket-cap-mb", "-inf"},
                                                     {"--bucket-cap-mb", "automatic"},
                                                     {"--clip", "nan"},
                                                     {"--dropout", "1"},
                                                     {"--workers", "-1"},
                                                     {"--compress", "int8"},
                                                     {"--average", "median"},
                                                     {"--strategy", "fsdp"},
                                                     {"--device", "cuda:0,"},
                                                     {"--device", "cuda:"},
                                                     {"--break", "everything"},
                                                     {"--no-such-flag", "1"}};
  for (const auto& words : bad) {
    const Attempt attempt = parse(words);
    INFO(words[0] << " " << words[1] << ": " << attempt.complaint);
    CHECK(!attempt.parsed.options);
    CHECK(attempt.parsed.exit_code != 0);
    CHECK(attempt.complaint.find(words[0]) != std::string::npos);
    CHECK(attempt.complaint.find(words[1]) != std::string::npos);
  }
  CHECK(!parse({"--steps", "5", "--epochs", "2"}).parsed.options);
  CHECK(parse({"--algorithm", "copy-engine"})
            .complaint.find("cannot do all of a run's all-reduces: use auto|ring|") !=
        std::string::npos);
  CHECK(parse({"--help"}).parsed.exit_code == 0);
  CHECK(parse({"--seed", "9223372036854775807"}).parsed.options->seed == 9223372036854775807);
}

TEST_CASE("options: what a model does not say is its own") {
  const TrainOptions gpt = *parse({"--model", "gpt"}).parsed.options;
  CHECK(gpt.layers == 4);
  CHECK(gpt.width == 128);
  CHECK(gpt.heads == 4);
  CHECK(gpt.context == 64);
  CHECK(gpt.vocabulary == 256);
  CHECK(gpt.optimizer == "adamw");
  CHECK(gpt.lr == 0.001);
  CHECK(gpt.weight_decay == 0.01);
  CHECK(parse({"--model", "gpt", "--data-format", "tokens"}).parsed.options->vocabulary == 50257);
  const TrainOptions cnn = *parse({"--model", "cnn", "--data", "x"}).parsed.options;
  CHECK(cnn.width == 16);
  CHECK(cnn.data_format == "images");
  CHECK(cnn.optimizer == "sgd");
  CHECK(cnn.lr == 0.02);
}

TEST_CASE("options: flags that do not go together are refused, both named") {
  const std::vector<std::vector<const char*>> bad = {
      {"--model", "gpt", "--width", "100", "--heads", "3"},
      {"--model", "cnn"},
      {"--bucket-cap-mb", "auto", "--zero", "1"},
      {"--strategy", "dp", "--bucket-cap-mb", "auto"},
      {"--model", "mlp", "--dropout", "0.1"},
      {"--model", "gpt", "--sync-batch-norm"},
      {"--model", "mlp", "--data-format", "tokens"},
      {"--lr-scale", "linear"},
      {"--dtype", "fp64", "--compress", "bf16"},
      {"--dtype", "bf16", "--compress", "fp16"},
      {"--model", "mlp", "--context", "99"},
      {"--model", "gpt", "--no-split-tied", "--tied-rows", "whole"},
      {"--model", "gpt", "--device", "cuda", "--tied-rows", "whole"},
      {"--device", "cuda", "--dtype", "fp64"},
      {"--dtype", "fp32", "--tf32"},
      {"--device", "cuda", "--dtype", "bf16", "--tf32"},
      {"--strategy", "dp", "--device", "cuda", "--dtype", "bf16"},
      {"--device", "cuda", "--threads", "2"},
      {"--device", "cuda", "--pace", "1GB/s,20us"},
      {"--device", "cuda", "--reproducible", "--dtype", "bf16"},
      {"--device", "cuda", "--reproducible", "--zero", "1", "--clip", "1"},
      {"--model", "gpt", "--device", "cuda", "--width", "1024", "--heads", "4"},
      {"--optimizer", "adamw", "--momentum", "0.5"},
      {"--optimizer", "sgd", "--beta1", "0.8"},
      {"--model", "gpt", "--optimizer", "sgd", "--beta2", "0.95"},
      {"--min-lr", "0.1"},
      {"--base-batch", "4"},
      {"--validate-every", "3"},
      {"--checkpoint-dir", "x", "--break", "straggler"},
      {"--strategy", "dp", "--accum", "2"},
      {"--resume"},
      {"--ranks", "2", "--scaling", "1,2"},
      {"--scaling", "1,2", "--trace", "t"},
      {"--strong"},
      {"--min-ranks", "2"},
      {"--elastic", "--ranks", "2", "--min-ranks", "3"},
      {"--strategy", "dp", "--elastic"},
      {"--data", "x{rank}", "--elastic"},
      {"--elastic", "--zero", "1"},
      {"--json", "x", "--trace", "x"},
      {"--json", "x", "--trace", "./none/../x"},
      {"--trace", "x", "--save-weights", "x"},
      {"--model", "gpt", "--save-weights", "x", "--checkpoint-dir", "./x"},
      {"--checkpoint-every", "2"}};
  for (const auto& words : bad) {
    const Attempt attempt = parse(words);
    INFO(words[0] << " " << words[words.size() - 1] << ": " << attempt.complaint);
    CHECK(!attempt.parsed.options);
    CHECK(attempt.parsed.exit_code != 0);
    // The last flag is what does not go with the rest.
    const bool value_last = words.back()[0] != '-';
    const std::string flag = value_last ? words[words.size() - 2] : words.back();
    CHECK(attempt.complaint.find(flag) != std::string::npos);
  }
}

TEST_CASE("options: a bucket cap is a number, or auto") {
  const TrainOptions automatic = *parse({"--bucket-cap-mb", "auto"}).parsed.options;
  CHECK(automatic.auto_buckets());
  CHECK(to_json(automatic)["bucket_cap_mb"] == "auto");
  const TrainOptions fixed = *parse({"--bucket-cap-mb", "0"}).parsed.options;
  CHECK_FALSE(fixed.auto_buckets());
  CHECK(to_json(fixed)["bucket_cap_mb"] == 0);
}

TEST_CASE("options: - is no name of a file, as stdout has lines already") {
  for (const char* flag : {"--json", "--trace"}) {
    const Attempt attempt = parse({flag, "-"});
    CHECK(attempt.parsed.exit_code == 2);
    CHECK(attempt.complaint.find(std::string(flag) + ": - is not a file") != std::string::npos);
  }
}

TEST_CASE("options: two names of one file are refused, also of one that a symlink will make") {
  const rondo::testing::TempDirectory folder;
  const std::string file = folder.path() + "/file", link = folder.path() + "/link";
  std::filesystem::create_symlink("file", link);
  CHECK(!parse({"--json", file.c_str(), "--trace", link.c_str()}).parsed.options);
  std::ofstream(file) << "there";
  CHECK(!parse({"--json", file.c_str(), "--trace", link.c_str()}).parsed.options);
  CHECK(parse({"--json", file.c_str(), "--trace", (file + "2").c_str()}).parsed.options);
  CHECK(parse({"--json", "/dev/null", "--trace", "/dev/null"}).parsed.options);
}

TEST_CASE("options: a default, given, is not refused") {
  CHECK(parse({"--min-lr", "0"}).parsed.options);
  CHECK(parse({"--min-lr", "0.0"}).parsed.options);
  CHECK(parse({"--heads", "4", "--context", "64"}).parsed.options);
  CHECK(parse({"--dtype", "bf16", "--compress", "none"}).parsed.options);
  CHECK(!parse({"--heads", "8"}).parsed.options);
  CHECK(!parse({"--no-split-tied"}).parsed.options);
}

TEST_CASE("options: --help has every default") {
  const std::string help = parse({"--help"}).complaint;
  const std::pair<const char*, const char*> defaults[] = {
      {"--model", "mlp"},
      {"--layers", "mlp 2, cnn 2, gpt 4"},
      {"--width", "mlp 512, cnn 16, gpt 128"},
      {"--heads", "4"},
      {"--context", "64"},
      {"--vocabulary", "bytes 256, tokens 50257"},
      {"--classes", "10"},
      {"--dropout", "0"},
      {"--data", "rondo's licence"},
      {"--data-format", "cnn images, else bytes"},
      {"--workers", "4"},
      {"--sampler-tail", "pad"},
      {"--steps", "100"},
      {"--batch", "32"},
      {"--accum", "1"},
      {"--seed", "0"},
      {"--optimizer", "gpt adamw, else sgd"},
      {"--lr", "sgd 0.02, adamw 0.001"},
      {"--momentum", "0.9"},
      {"--beta1", "0.9"},
      {"--beta2", "0.999"},
      {"--weight-decay", "sgd 0, adamw 0.01"},
      {"--lr-decay", "constant"},
      {"--min-lr", "0"},
      {"--dtype", "fp32"},
      {"--ranks", "the launcher's, else 1"},
      {"--strategy", "ddp"},
      {"--algorithm", "auto"},
      {"--threads", "1"},
      {"--bucket-cap-mb", "25"},
      {"--average", "terms"},
      {"--compress", "none"},
      {"--tied-rows", "auto"},
      {"--zero", "0"},
      {"--control-steps", "0"},
      {"--checkpoint-keep", "2"},
      {"--log-every", "1"},
      {"--break", "none"}};
  for (const auto& [flag, value] : defaults) {
    const size_t at = help.find("  " + std::string(flag) + " ");
    INFO(flag);
    REQUIRE(at != std::string::npos);
    const std::string option = help.substr(at, help.find("\n  --", at + 1) - at);
    INFO(option);
    // As one version of CLI11 or another writes it.
    const bool equals = option.find("=" + std::string(value)) != std::string::npos;
    CHECK((equals || option.find("[" + std::string(value) + "]") != std::string::npos));
  }
}

TEST_CASE("options: --scaling is a list") {
  const Attempt attempt = parse({"--scaling", "1,2,4", "--strong"});
  INFO(attempt.complaint);
  REQUIRE(attempt.parsed.options);
  CHECK(attempt.parsed.options->scaling == std::vector<uint64_t>{1, 2, 4});
  CHECK(attempt.parsed.options->strong);
  CHECK(!parse({"--scaling", "1,two"}).parsed.options);
}

TEST_CASE("report: median") {
  CHECK(median({}) == 0);
  CHECK(median({3}) == 3);
  CHECK(median({9, 1, 4}) == 4);
  CHECK(median({9, 1, 4, 2}) == 3);
}
