// See options.hpp.
#include "trainer/cli/options.hpp"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/base/limits.hpp"
#include "rondo/rondo.h"
#include "trainer/files/disk.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"

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
        const auto algorithm = parse<Algorithm>(text, kAlgorithmNames);
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
      ->check(choice({"constant", "cosine"}, {}));
  app.add_option("--min-lr", o.min_lr, "Rate of the last step of a cosine")->check(number(0, 1e6));
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
      ->check(algorithm_of_all_reduce());
  app.add_option("--threads", o.threads, "Compute threads per rank")->check(CLI::Range(1, 4096));
  app.add_option("--bucket-cap-mb", o.bucket_cap_mb,
                 "MiB of gradients per all-reduce; 0: one for each tensor; auto: measured in the "
                 "first five steps")
      ->transform(cap_or_auto());
  app.add_flag("--no-overlap", o.no_overlap, "All-reduce only after backward");
  app.add_flag(
      "--no-cuda-graph", o.no_cuda_graph,
      "--device cuda: enqueue every kernel of every step, rather than replay a graph of a step");
  app.add_option("--average", o.average, "Over loss terms, or of the ranks' means as DDP")
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
  app.add_flag("--reproducible", o.reproducible, "The same bits with any bucket cap");
  app.add_option("--control-steps", o.control_steps,
                 "First measure so many steps without communication, and with it after backward")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1000}));
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

/// Flags that only some models or settings read: given elsewhere, with another value than the default,
/// they would be ignored in silence.
struct Belongs {
  const char* flag;
  const char* to;  // in words
  bool (*fits)(const TrainOptions&);
};
constexpr auto kGpt = [](const TrainOptions& o) { return o.model == "gpt"; };
constexpr auto kCnn = [](const TrainOptions& o) { return o.model == "cnn"; };
constexpr auto kTied = [](const TrainOptions& o) {
  return o.model == "gpt" && (!o.no_split_tied || o.on_gpu());  // where it is refused for itself
};
constexpr auto kSgd = [](const TrainOptions& o) { return o.optimizer == "sgd"; };
constexpr auto kCosine = [](const TrainOptions& o) { return o.lr_decay == "cosine"; };
constexpr auto kScaled = [](const TrainOptions& o) { return o.lr_scale != "none"; };
constexpr auto kValidates = [](const TrainOptions& o) { return !o.validation.empty(); };
constexpr auto kGpu = [](const TrainOptions& o) { return o.on_gpu(); };
constexpr auto kGpuFp32 = [](const TrainOptions& o) { return o.on_gpu() && o.dtype == "fp32"; };
constexpr auto kFp32 = [](const TrainOptions& o) { return o.dtype == "fp32"; };
constexpr Belongs kBelongs[] = {
    {"--heads", "--model gpt", kGpt},
    {"--context", "--model gpt", kGpt},
    {"--vocabulary", "--model gpt", kGpt},
    {"--dropout", "--model gpt", kGpt},
    {"--layer-drop", "--model gpt", kGpt},
    {"--weights", "--model gpt", kGpt},
    {"--save-weights", "--model gpt", kGpt},
    {"--no-split-tied", "--model gpt", kGpt},
    {"--tied-rows", "--model gpt without --no-split-tied", kTied},
    {"--classes", "--model cnn", kCnn},
    {"--sync-batch-norm", "--model cnn", kCnn},
    {"--no-broadcast-buffers", "--model cnn", kCnn},
    {"--momentum", "--optimizer sgd", kSgd},
    {"--min-lr", "--lr-decay cosine", kCosine},
    {"--base-batch", "--lr-scale linear or sqrt", kScaled},
    {"--validate-every", "--validation", kValidates},
    {"--no-cuda-graph", "--device cuda", kGpu},
    {"--tf32", "--device cuda and --dtype fp32", kGpuFp32},
    {"--compress", "--dtype fp32 (bf16 and fp16 travel as they are, fp64 is not to be rounded)",
     kFp32},
};

/// Why --strategy dp cannot follow these flags, naming one; empty: it can, or the strategy is ddp.
std::string refused_by_strategy(const TrainOptions& o) {
  if (o.strategy != "dp") return {};
  const TrainOptions plain;  // as if no flag had been given
  struct Refusal {
    bool asked_for;
    const char* flag;
    const char* why;
  };
  const Refusal refusals[] = {
      {!o.checkpoint_dir.empty(), "--checkpoint-dir", "it only serves to be compared with"},
      {o.join, "--join", "rank 0 reads all data, so no rank runs out of it before others"},
      {o.data_by_rank(), "{rank} in --data", "rank 0 reads all data"},
      {o.accum != plain.accum, "--accum", "DataParallel has no no_sync()"},
      {o.algorithm != plain.algorithm, "--algorithm", "all goes by the star"},
      {o.bucket_cap_mb != plain.bucket_cap_mb, "--bucket-cap-mb", "it has no buckets"},
      {o.no_overlap, "--no-overlap", "it never overlaps"},
      {o.average != plain.average, "--average", "it has one loss, that of the global batch"},
      {o.compress != plain.compress, "--compress", "it has no communication hooks"},
      {o.dtype == "bf16" || o.dtype == "fp16", "--dtype bf16 or fp16",
       o.on_gpu() ? "use fp32" : "use fp32 or fp64"},
      {o.tied_rows != plain.tied_rows, "--tied-rows", "gradients travel whole"},
      {o.sync_batch_norm, "--sync-batch-norm", "replicas know only rank 0"},
      {o.no_broadcast_buffers, "--no-broadcast-buffers", "buffers are replicated in every step"},
      {o.zero != plain.zero, "--zero", "rank 0 alone has the optimizer's state"},
      {o.control_steps != plain.control_steps, "--control-steps", "nothing of it is overlapped"},
      {o.elastic, "--elastic", "nothing goes on without rank 0"},
      {o.layer_drop > 0, "--layer-drop", "it does not know which parameters were used"},
      {o.sabotage != plain.sabotage, "--break", "that breaks the ddp strategy"},
  };
  for (const Refusal& refusal : refusals) {
    if (!refusal.asked_for) continue;
    return std::string("--strategy dp does not go with ") + refusal.flag + ": " + refusal.why;
  }
  return {};
}

/// Why a run on GPUs cannot follow these flags, naming one; empty: it can, or it is on none.
std::string refused_by_device(const TrainOptions& o) {
  if (!o.on_gpu()) return {};
  const TrainOptions plain;
  struct Refusal {
    bool asked_for;
    std::string flag;
    const char* why;
  };
  const Refusal refusals[] = {
      {o.dtype == "fp64", "--dtype fp64", "use fp32, bf16 or fp16"},
      {o.tied_rows != plain.tied_rows, "--tied-rows", "the embedding has one gradient there"},
      {o.threads != plain.threads, "--threads", "a rank's GPU computes"},
      {!o.pace.empty(), "--pace", "messages between GPUs cannot be slowed down"},
      {o.elastic, "--elastic", "communicators on GPUs cannot shrink"},
      {o.reproducible && o.dtype != plain.dtype, "--reproducible with --dtype " + o.dtype,
       "ranks' sums of it have no order of their own: use fp32"},
      {o.reproducible && o.zero == 1 && o.clip > 0, "--reproducible with --zero 1 and --clip",
       "there the norm is summed by shards, which are parts of buckets"},
  };
  for (const Refusal& refusal : refusals) {
    if (!refusal.asked_for) continue;
    return "--device " + o.device + " does not go with " + refusal.flag + ": " + refusal.why;
  }
  return {};
}

/// Whether it was given with a value that is not the one in --help.
bool differs_from_default(const CLI::Option& option) {
  if (option.count() == 0) return false;
  const std::string& given = option.results().back();
  double value = 0, standard = 0;
  if (CLI::detail::lexical_cast(given, value) &&
      CLI::detail::lexical_cast(option.get_default_str(), standard)) {
    return value != standard;
  }
  return given != option.get_default_str();
}

/// The file, all symlinks followed; empty where a folder of its path cannot be read.
std::filesystem::path canonical(const std::string& path) {
  std::error_code error;
  std::filesystem::path file =
      std::filesystem::weakly_canonical(std::filesystem::absolute(file_behind(path), error), error);
  return error ? std::filesystem::path() : file;
}

/// Why two flags that name the same file do not go together, or one and stdout; empty: none do.
std::string shared_output(const TrainOptions& o) {
  std::map<std::filesystem::path, std::string> files;  // and the flag that names each
  const std::filesystem::path out = canonical("/proc/self/fd/1");
  for (const auto& [flag, path] : {std::pair{"--json", o.json},
                                   {"--trace", o.trace},
                                   {"--save-weights", o.save_weights},
                                   {"--checkpoint-dir", o.checkpoint_dir}}) {
    if (path.empty() || path == "/dev/null") continue;
    const std::filesystem::path file = canonical(path);
    if (file.empty()) continue;  // whoever writes it says so
    // /dev/stdout is each rank's own, and what is written there follows the lines.
    const bool is_own = path.starts_with("/dev/") || path.starts_with("/proc/");
    if (file == out && (!is_own || path == o.save_weights)) {
      return std::string(flag) + " '" + path + "' is where stdout goes, too: name another file";
    }
    const auto [same, is_new] = files.emplace(file, flag);
    if (is_new) continue;
    return "'" + path + "' is named by " + same->second + " and by " + flag +
           ": give each a file of its own";
  }
  return {};
}

/// Why these flags do not go together; empty: they do.
std::string contradiction(const CLI::App& app, const TrainOptions& o) {
  const bool gpt = o.model == "gpt", cnn = o.model == "cnn", mlp = o.model == "mlp";
  const std::string model = "--model " + o.model;
  if (mlp && o.width % MlpShape::kContext != 0) {
    return "--width " + std::to_string(o.width) + " is not a multiple of " +
           std::to_string(MlpShape::kContext) + ", as " + model + " needs";
  }
  if (gpt && o.width % o.heads != 0) {
    return "--width " + std::to_string(o.width) + " is not a multiple of --heads " +
           std::to_string(o.heads);
  }
  if (cnn != (o.data_format == "images")) {
    return model + " cannot be trained on --data-format " + o.data_format;
  }
  if (mlp && o.data_format != "bytes") return model + " reads --data-format bytes";
  if (cnn && o.data.empty()) return model + " needs --data: a folder with images and labels (IDX)";
  for (const Belongs& belongs : kBelongs) {
    if (differs_from_default(*app.get_option(belongs.flag)) && !belongs.fits(o)) {
      return std::string(belongs.flag) + " is for " + belongs.to;
    }
  }
  if (o.auto_buckets() && o.zero == 1) {
    return "--bucket-cap-mb auto does not go with --zero 1, whose shards are parts of buckets";
  }
  if (o.lr_scale != "none" && o.base_batch == 0) {
    return "--lr-scale " + o.lr_scale + " needs --base-batch: the global batch that --lr is for";
  }
  if (!o.scaling.empty() && (o.ranks != 0 || o.resume || !o.checkpoint_dir.empty() ||
                             !o.save_weights.empty() || !o.trace.empty())) {
    return "--scaling runs several times: leave out --ranks, --checkpoint-dir, --resume, "
           "--save-weights and --trace";
  }
  const std::string shared = shared_output(o);
  if (!shared.empty()) return shared;
  if (o.ranks != 0 && o.min_ranks > o.ranks) {
    return "--min-ranks " + std::to_string(o.min_ranks) + " is more than --ranks " +
           std::to_string(o.ranks);
  }
  if (o.elastic && o.zero == 1 && o.checkpoint_dir.empty()) {
    return "--elastic with --zero 1 needs --checkpoint-dir: with a rank its shard of the "
           "optimizer's state is lost, so the others go on from the last checkpoint";
  }
  if (o.elastic && o.data_by_rank()) {
    return "--elastic does not go with {rank} in --data: no other rank can read what a rank that "
           "dies has left";
  }
  if (o.sabotage != "none" && !o.checkpoint_dir.empty()) {
    return "--break " + o.sabotage + " with --checkpoint-dir would leave something broken behind";
  }
  if (gpt && o.on_gpu() && o.width / o.heads > kLargestHeadOnDevice) {
    return "--device " + o.device + " wants heads of at most " +
           std::to_string(kLargestHeadOnDevice) + " numbers, but --width " +
           std::to_string(o.width) + " has " + std::to_string(o.width / o.heads) +
           " for each of --heads " + std::to_string(o.heads);
  }
  const std::string refused = refused_by_device(o);
  return refused.empty() ? refused_by_strategy(o) : refused;
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
