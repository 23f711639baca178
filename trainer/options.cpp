// See options.hpp.
#include "trainer/options.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <limits>
#include <vector>

#include "trainer/mlp.hpp"

namespace rondo::trainer {
namespace {

/// One of `there`; names that belong to rondo but are not in this build say so.
CLI::Validator choice(const std::vector<std::string>& there,
                      const std::vector<std::string>& missing) {
  const std::string list = CLI::detail::join(there, "|");
  const auto has = [](const std::vector<std::string>& names, const std::string& value) {
    return std::find(names.begin(), names.end(), value) != names.end();
  };
  return CLI::Validator(
      [=](std::string& value) -> std::string {
        if (has(there, value)) return {};
        const std::string why =
            has(missing, value) ? "' is not available in this version: use " : "' is unknown: use ";
        return "'" + value + why + list;
      },
      list);
}

/// Written so that NaN fails too, which CLI::Range lets through.
CLI::Validator number(double least, double below) {
  const std::string range =
      "in [" + CLI::detail::to_string(least) + ", " + CLI::detail::to_string(below) + ")";
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value < below) return {};
        return "'" + text + "' is not a number " + range;
      },
      range);
}

CLI::Validator multiple_of_context() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        size_t value = 0;
        if (CLI::detail::lexical_cast(text, value) && value % MlpShape::kContext == 0) return {};
        return "'" + text + "' is not a multiple of " + std::to_string(MlpShape::kContext);
      },
      "");
}

void add_flags(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  constexpr uint64_t kMany = 1'000'000'000'000;
  // Signed, because as an unsigned number -1 would be accepted as a large one.
  const CLI::Range not_negative(int64_t{0}, std::numeric_limits<int64_t>::max());
  app.add_option("--model", o.model, "What to train")->check(choice({"mlp"}, {"cnn", "gpt"}));
  app.add_option("--layers", o.layers, "Hidden layers")->check(CLI::Range(1, 1000));
  app.add_option("--width", o.width, "Width of a hidden layer, a multiple of 16")
      ->check(CLI::Range(16, 65536))
      ->check(multiple_of_context());

  app.add_option("--data", o.data, "File or folder; default: rondo's own sources and documents");
  auto* steps = app.add_option("--steps", o.steps, "Number of the last step (default 100)");
  steps->check(CLI::Range(uint64_t{1}, kMany));
  app.add_option("--epochs", o.epochs, "Passes over the data instead of --steps")
      ->check(CLI::Range(uint64_t{1}, kMany))
      ->excludes(steps);
  app.add_option("--batch", o.batch, "Samples per rank and micro-batch")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--accum", o.accum, "Micro-batches whose gradients are added up before a step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", o.seed, "Of the parameters and of the order of the data")
      ->check(not_negative);

  app.add_option("--optimizer", o.optimizer)->check(choice({"sgd"}, {"adamw"}));
  app.add_option("--lr", o.lr, "Learning rate")->check(number(0, 1e6));
  app.add_option("--momentum", o.momentum)->check(number(0, 1));
  app.add_option("--dtype", o.dtype)->check(choice({"fp32", "fp64"}, {"bf16", "fp16"}));

  app.add_option("--ranks", o.ranks, "Start that many ranks on this machine")
      ->check(CLI::Range(1, 4096));
  app.add_option("--threads", o.threads, "Compute threads per rank")->check(CLI::Range(1, 4096));
  app.add_option("--bucket-cap-mb", o.bucket_cap_mb, "MiB of gradients per all-reduce")
      ->check(number(0, 1e6));
  app.add_flag("--no-overlap", o.no_overlap, "All-reduce only after backward");
  app.add_option("--pace", o.pace, "BW,LAT: slow every message down, as in 1GB/s,20us");

  app.add_option("--log-every", o.log_every, "Steps per line; 0: only the summary")
      ->check(not_negative);
  app.add_option("--json", o.json, "File for everything that was reported");
  app.add_option("--trace", o.trace, "File for a Chrome trace of rank 0");
}

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
  CLI::App app("Trains a small model on several ranks whose gradients go round the ring.",
               "rondo-train");
  Options options;
  add_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return {.options = std::nullopt,
            .exit_code = app.exit(error, std::cout, std::cerr) == 0 ? 0 : 2};
  }
  if (options.steps == 0 && options.epochs == 0) options.steps = 100;
  return {.options = options};
}

}  // namespace rondo::trainer
