// See options.hpp.
#include "trainer/cli/options.hpp"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/base/limits.hpp"
#include "rondo/rondo.h"
#include "trainer/cli/contradictions.hpp"

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

/// The numbers after "cuda:"; none where that is not what it says.
std::vector<int> gpus_in(const std::string& device) {
  const std::string prefix = "cuda:";
  std::vector<int> numbers;
  if (device.rfind(prefix, 0) != 0 || device.ends_with(',')) return numbers;
  for (const std::string& text : CLI::detail::split(device.substr(prefix.size()), ',')) {
    int number = 0;
    if (!CLI::detail::lexical_cast(text, number) || number < 0) return {};
    numbers.push_back(number);
  }
  return numbers;
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

/// "auto" becomes what kDdpAutoCap reads as.
CLI::Validator cap_or_auto() {
  const CLI::Validator cap = number(0, 1e6);
  return CLI::Validator(
      [cap](std::string& text) -> std::string {
        if (text != "auto") {
          const std::string wrong = cap(text);
          return wrong.empty() ? wrong : wrong + ", nor auto";
        }
        text = "-inf";
        return {};
      },
      "auto or " + cap.get_description());
}

/// Whether all of a run's all-reduces can be by it: they are in place, and not all in library memory.
bool does_all_reduce(Algorithm algorithm) {
  return algorithm == Algorithm::kAuto ||
         (algorithms::find(Collective::kAllReduce, algorithm) != nullptr &&
          !algorithms::traits_of(algorithm).needs.references);
}

CLI::Validator algorithm_of_all_reduce() {
  std::string list;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (does_all_reduce(algorithm))
      list += (list.empty() ? "" : "|") + std::string(name(algorithm));
  }
  return CLI::Validator(
      [list](std::string& text) -> std::string {
        const auto algorithm = internal::parse<Algorithm>(text, kAlgorithmNames);
        if (algorithm && does_all_reduce(*algorithm)) return {};
        return "'" + text +
               (algorithm ? "' cannot do all of a run's all-reduces" : "' is unknown") + ": use " +
               list;
      },
      list);
}

/// A number of ranks.
CLI::Validator ranks() { return CLI::Range(1, base::kMaxRanks); }

/// cpu, cuda or cuda:0,1,...
CLI::Validator device_names() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "cpu" || text == "cuda" || !gpus_in(text).empty()) return {};
        return "'" + text +
               "' is neither cpu nor cuda, nor cuda: with numbers of GPUs, as cuda:0,1";
      },
      "cpu|cuda|cuda:N,...");
}

constexpr uint64_t kMany = 1'000'000'000'000;

// Signed, because as an unsigned number -1 would be accepted as a large one.
CLI::Validator not_negative() {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const CLI::Range range{int64_t{0}, kLargest};
  return CLI::Validator(
      [range](std::string& text) -> std::string {
        errno = 0;
        (void)std::strtoll(text.c_str(), nullptr, 0);  // CLI11 takes what it clamps to
        if (errno != ERANGE) return range(text);
        return "Value " + text + " not in range 0 to " + std::to_string(kLargest);
      },
      range.get_description());
}

void add_model(CLI::App& app, TrainOptions& o) {
  app.add_option("--model", o.model, "What to train")->check(choice({"mlp", "cnn", "gpt"}, {}));
  app.add_option("--layers", o.layers, "Hidden layers or blocks")
      ->default_str("mlp 2, cnn 2, gpt 4")
      ->check(CLI::Range(1, 1000));
  app.add_option("--width", o.width, "Width of a layer")
      ->default_str("mlp 512, cnn 16, gpt 128")
      ->check(CLI::Range(1, 65536));
  app.add_option("--heads", o.heads, "gpt: attention heads")->check(CLI::Range(1, 1024));
  app.add_option("--context", o.context, "gpt: tokens of a sample")->check(CLI::Range(1, 1 << 20));
  app.add_option("--vocabulary", o.vocabulary, "gpt: symbols")
      ->default_str("bytes 256, tokens 50257")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--classes", o.classes, "cnn: labels are below it")->check(CLI::Range(2, 65536));
  app.add_option("--dropout", o.dropout, "gpt: probability")->check(number(0, 1));
  app.add_option("--layer-drop", o.layer_drop, "gpt: probability that a step leaves out a block")
      ->check(number(0, 1));
  app.add_flag(
      "--no-split-tied", o.no_split_tied,
      "gpt: one gradient for both uses of the token embedding, final at the end only; --seed "
      "then gives other initial parameters");
  app.add_flag("--sync-batch-norm", o.sync_batch_norm, "cnn: statistics over all ranks' samples");
  app.add_option("--weights", o.weights, "gpt: start from this safetensors file of GPT-2");
  app.add_option("--save-weights", o.save_weights, "gpt: write such a file at the end");
}

void add_data(CLI::App& app, TrainOptions& o) {
  app.add_option("--data", o.data, "File or folder, {rank} is replaced")
      ->default_str("rondo's licence");
  app.add_option("--data-format", o.data_format, "bytes, tokens (llm.c) or images (IDX)")
      ->default_str("cnn images, else bytes")
      ->check(choice({"bytes", "tokens", "images"}, {}));
  app.add_option("--validation", o.validation, "Data that is evaluated, every sample once");
  app.add_option("--validate-every", o.validate_every, "Steps between; 0: at the end")
      ->check(not_negative());
  app.add_option("--workers", o.workers, "Threads that read ahead")->check(CLI::Range(0, 64));
  app.add_flag("--drop-last", o.drop_last, "Leave out batches that are not full");
  app.add_option("--sampler-tail", o.sampler_tail,
                 "Samples that ranks cannot share equally: pad (some count twice) or drop")
      ->check(choice({"pad", "drop"}, {}));
  auto* steps = app.add_option("--steps", o.steps, "Number of the last step");
  steps->default_str("100")->check(CLI::Range(uint64_t{1}, kMany));
  app.add_option("--epochs", o.epochs, "Passes over the data instead of --steps")
      ->default_str("")
      ->check(CLI::Range(uint64_t{1}, kMany))
      ->excludes(steps);
  app.add_option("--batch", o.batch, "Samples per rank and micro-batch")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--accum", o.accum, "Micro-batches whose gradients are added up before a step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", o.seed, "Of the parameters, the order of the data and dropout")
      ->check(not_negative());
}

void add_optimizer(CLI::App& app, TrainOptions& o) {
  app.add_option("--optimizer", o.optimizer, "How parameters are updated")
      ->default_str("gpt adamw, else sgd")
      ->check(choice({"sgd", "adamw"}, {}));
  app.add_option("--lr", o.lr, "Learning rate")
      ->default_str("sgd 0.02, adamw 0.001")
      ->check(number(0, 1e6));
  app.add_option("--momentum", o.momentum, "sgd")->check(number(0, 1));
  app.add_option("--beta1", o.beta1, "adamw: what a step keeps of the mean of gradients")
      ->check(number(0, 1));
  app.add_option("--beta2", o.beta2, "adamw: the same of the mean of their squares")
      ->check(number(0, 1));
  app.add_option("--weight-decay", o.weight_decay, "Of matrices, not of biases and norms")
      ->default_str("sgd 0, adamw 0.01")
      ->check(number(0, 1e6));
  app.add_option("--clip", o.clip, "Largest norm of all gradients together; 0: no limit")
      ->check(number(0, 1e12));
  app.add_option("--lr-scale", o.lr_scale, "How the rate follows the global batch")
      ->check(choice({"none", "linear", "sqrt"}, {}));
  app.add_option("--base-batch", o.base_batch, "The global batch that --lr is for")
      ->default_str("")
      ->check(CLI::Range(uint64_t{1}, kMany));
  app.add_option("--lr-decay", o.lr_decay, "After the warm-up")
      ->check(choice({"constant", "cosine", "linear"}, {}));
  app.add_option("--min-lr", o.min_lr, "cosine, linear: rate of the last step")
      ->check(number(0, 1e6));
  app.add_option("--warmup", o.warmup, "Steps in which the rate grows to --lr")
      ->check(not_negative());
  app.add_option("--dtype", o.dtype, "bf16, fp16: weights and gradients rounded, fp32 masters")
      ->check(choice({"fp32", "fp64", "bf16", "fp16"}, {}));
  app.add_flag(
      "--tf32", o.tf32,
      "--device cuda, fp32: matrix products round what they multiply to 10 bits, on tensor "
      "cores");
}

/// As a name of stdout: lines are there already.
CLI::Validator no_dash() {
  return {[](const std::string& name) {
            return name == "-" ? "- is not a file: use /dev/stdout to print it, too"
                               : std::string();
          },
          "", "no_dash"};
}

void add_ranks(CLI::App& app, TrainOptions& o) {
  app.add_option("--device", o.device,
                 "Where to compute: cpu, or the GPUs over which a host's ranks take turns")
      ->check(device_names());
  app.add_option("--ranks", o.ranks, "Start that many ranks on this machine")
      ->default_str("the launcher's, else 1")
      ->check(ranks());
  app.add_option("--strategy", o.strategy,
                 "ddp, or dp: what DataParallel does, all through rank 0, for comparison")
      ->check(choice({"ddp", "dp"}, {}));
  app.add_option("--algorithm", o.algorithm,
                 "Of every all-reduce; auto: the cheapest by the link profile")
      ->envname("RONDO_ALGORITHM")
      ->check(algorithm_of_all_reduce());
  app.add_option("--compute-threads,--threads", o.compute_threads, "Compute threads per rank")
      ->check(CLI::Range(1, 4096));
  app.add_option("--bucket-cap-mb", o.bucket_cap_mb,
                 "MiB of gradients per all-reduce; 0: one for each tensor; auto: measured in the "
                 "first five steps")
      ->transform(cap_or_auto());
  app.add_flag("--no-overlap", o.no_overlap, "All-reduce only after backward");
  app.add_flag(
      "--no-cuda-graph", o.no_cuda_graph,
      "--device cuda: enqueue every kernel of every step, rather than replay a graph of a step");
  app.add_option("--average-over", o.average_over,
                 "terms: the mean over the loss terms of all ranks; ranks: the mean of the ranks' "
                 "means, as "
                 "in DDP")
      ->check(choice({"terms", "ranks"}, {}));
  app.add_flag("--join", o.join, "Ranks without data go on with empty batches");
  app.add_flag("--no-broadcast-buffers", o.no_broadcast_buffers,
               "cnn: leave each rank its own batch norm statistics");
  app.add_option("--compress", o.compress, "What gradients travel as")
      ->check(choice({"none", "bf16", "fp16"}, {}));
  app.add_option("--tied-rows", o.tied_rows, "gpt: how the looked-up rows' gradient travels")
      ->check(choice({"auto", "whole", "touched"}, {}));
  app.add_option("--zero", o.zero,
                 "Stage of ZeRO: 1 cuts the optimizer's state into shards, one for each rank")
      ->check(choice({"0", "1"}, {"2", "3"}));
  app.add_flag("--reproducible", o.reproducible, "The same bits with any bucket cap")
      ->envname("RONDO_REPRODUCIBLE");
  app.add_option("--control-steps", o.control_steps,
                 "Passes that measure computing and communication alone; 0: none")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1000}))
      ->default_str("a tenth of the steps, at most 10; none below 30");
  auto* scaling = app.add_option("--scaling", o.scaling,
                                 "Run with each of these numbers of ranks, as in 1,2,4");
  scaling->default_str("")->delimiter(',')->allow_extra_args(false)->check(ranks());
  app.add_flag("--strong", o.strong, "--scaling: --batch is of all ranks together")->needs(scaling);
  auto* elastic = app.add_flag(
      "--elastic", o.elastic,
      "A rank that dies ends the step under way, not the run: the others make it again");
  app.add_option("--min-ranks", o.min_ranks, "--elastic: with fewer ranks left the run ends")
      ->check(ranks())
      ->needs(elastic);
  app.add_option("--pace", o.pace, "BW,LAT: slow every message down, as in 1GB/s,20us");
}

void add_files(CLI::App& app, TrainOptions& o) {
  auto* folder = app.add_option("--checkpoint-dir", o.checkpoint_dir, "Folder for checkpoints");
  app.add_option("--checkpoint-every", o.checkpoint_every, "Steps between; 0: at the end")
      ->check(not_negative())
      ->needs(folder);
  app.add_option("--checkpoint-keep", o.checkpoint_keep, "How many to keep, the newest")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(folder);
  app.add_flag("--resume", o.resume, "Go on from the latest checkpoint, if there is one")
      ->needs(folder);
  app.add_option("--log-every", o.log_every, "Steps per line; 0: only the summary")
      ->check(not_negative());
  app.add_option("--json", o.json, "File for everything that was reported")->check(no_dash());
  app.add_option("--trace", o.trace, "File for one Chrome trace of all ranks")->check(no_dash());
}

void add_lessons(CLI::App& app, TrainOptions& o) {
  app.add_option("--lesson", o.lesson,
                 "Break one thing beside a healthy run, say what to look at first; without NAME: "
                 "list them. "
                 "Needs rondo's sources")
      ->type_name("[NAME]")
      ->expected(0, 1);
  app.add_option("--lesson-folder", o.lesson_folder, "A lesson's data and results")
      ->default_str("build/lessons/NAME");
  app.add_option("--break", o.sabotage,
                 "On purpose: every rank reads rank 0's samples, every epoch has the first one's "
                 "order, samples come in the data's order, gradients are summed and not averaged, "
                 "rank 0 alone reads the loss of all in step 5, or the last rank takes 200 ms "
                 "longer per step")
      ->check(choice(
          {"none", "same-data", "no-set-epoch", "unshuffled", "sum", "lone-read", "straggler"},
          {}));
}

/// A lesson has settings of its own, but for --device. Empty: it stands alone.
std::string beside_lesson(const CLI::App& app, const TrainOptions& o) {
  if (o.lesson.empty()) {
    return o.lesson_folder.empty() ? "" : "--lesson-folder is for --lesson";
  }
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name.starts_with("--lesson") || name == "--device") continue;
    return "--lesson has settings of its own: leave out " + name;
  }
  return {};
}

/// What depends on other flags.
void fill_in(TrainOptions& o) {
  const bool gpt = o.model == "gpt", cnn = o.model == "cnn";
  if (o.layers == 0) o.layers = gpt ? 4 : 2;
  if (o.width == 0) o.width = gpt ? 128 : cnn ? 16 : 512;
  if (o.data_format.empty()) o.data_format = cnn ? "images" : "bytes";
  if (o.vocabulary == 0) o.vocabulary = o.data_format == "tokens" ? 50257 : 256;
  if (o.optimizer.empty()) o.optimizer = gpt ? "adamw" : "sgd";
  if (o.lr < 0) o.lr = o.optimizer == "adamw" ? 0.001 : 0.02;
  if (o.weight_decay < 0) o.weight_decay = o.optimizer == "adamw" ? 0.01 : 0;
  if (o.steps == 0 && o.epochs == 0) o.steps = 100;
  if (gpt && o.on_gpu()) o.no_split_tied = true;  // there the two shares are added at once
}

}  // namespace

int TrainOptions::device_of(int local_rank, int count) const {
  const std::vector<int> named = gpus_in(device);
  if (named.empty()) return count == 0 ? 0 : local_rank % count;
  return named[static_cast<size_t>(local_rank) % named.size()];
}

Parsed parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a small model on several ranks, which average their gradients by all-reduce.",
      "rondo-train");
  app.set_version_flag("--version", "rondo-train " RONDO_VERSION);
  TrainOptions options;
  app.option_defaults()->always_capture_default();
  add_model(app, options);
  add_data(app, options);
  add_optimizer(app, options);
  add_ranks(app, options);
  add_files(app, options);
  add_lessons(app, options);
  try {
    app.parse(argc, argv);
    if (app.count("--lesson") > 0 && options.lesson.empty()) options.lesson = "list";
    std::string why = beside_lesson(app, options);
    fill_in(options);
    if (why.empty()) why = contradiction(app, options);
    if (!why.empty()) throw CLI::ValidationError(why);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error, std::cout, std::cerr) != 0) {
      return {.options = std::nullopt, .exit_code = 2};
    }
    const Status printed = comm::flush_stdout();
    if (!printed.ok()) std::cerr << "rondo-train: " << printed.message() << "\n";
    return {.options = std::nullopt, .exit_code = printed.ok() ? 0 : 1};
  }
  return {.options = options};
}

}  // namespace rondo::trainer
