// See contradictions.hpp.
#include "trainer/cli/contradictions.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "trainer/files/disk.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"

namespace rondo::trainer {
namespace {

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
constexpr auto kAdamW = [](const TrainOptions& o) { return o.optimizer == "adamw"; };
constexpr auto kDecays = [](const TrainOptions& o) { return o.lr_decay != "constant"; };
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
    {"--beta1", "--optimizer adamw", kAdamW},
    {"--beta2", "--optimizer adamw", kAdamW},
    {"--min-lr", "--lr-decay cosine or linear", kDecays},
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
      {o.average_over != plain.average_over, "--average-over",
       "it has one loss, that of the global batch"},
      {o.compress != plain.compress, "--compress", "it has no communication hooks"},
      {o.dtype == "bf16" || o.dtype == "fp16", "--dtype bf16 or fp16",
       o.on_gpu() ? "use fp32" : "use fp32 or fp64"},
      {o.tied_rows != plain.tied_rows, "--tied-rows", "gradients travel whole"},
      {o.sync_batch_norm, "--sync-batch-norm", "replicas know only rank 0"},
      {o.no_broadcast_buffers, "--no-broadcast-buffers", "buffers are replicated in every step"},
      {o.zero != plain.zero, "--zero", "rank 0 alone has the optimizer's state"},
      {o.control_rounds() > 0, "--control-steps", "nothing of it is overlapped"},
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
      {o.compute_threads != plain.compute_threads, "--compute-threads", "a rank's GPU computes"},
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

}  // namespace

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

}  // namespace rondo::trainer
