// rondo-train's command line as values. Knows every flag and its bounds; does nothing about them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rondo/ddp.hpp"
#include "rondo/types.hpp"

namespace rondo::trainer {

struct TrainOptions {
  std::string model = "mlp";
  size_t layers = 0;  // 0, here and below: the model's own, filled in by parse_options()
  size_t width = 0;
  size_t heads = 4;
  size_t context = 64;
  size_t vocabulary = 0;
  size_t classes = 10;
  double dropout = 0, layer_drop = 0;
  bool no_split_tied = false, sync_batch_norm = false;
  std::string weights, save_weights;  // GPT-2's, in Hugging Face's form; empty: none

  std::string data;             // empty: default_text()
  std::string data_format;      // bytes, tokens or images
  std::string validation;       // data that is only evaluated; empty: none
  uint64_t validate_every = 0;  // 0: at the end only
  size_t workers = 4;
  bool drop_last = false;  // batches that are not full
  std::string sampler_tail = "pad";
  uint64_t steps = 0;  // the last step's number; 0: from epochs
  uint64_t epochs = 0;
  uint64_t batch = 32;  // per rank
  uint64_t accum = 1;   // micro-batches of that size per step and rank
  uint64_t seed = 0;

  std::string optimizer;  // sgd or adamw
  double lr = -1;         // negative: the optimizer's own
  double momentum = 0.9;
  double beta1 = 0.9, beta2 = 0.999;
  double weight_decay = -1;  // negative: the optimizer's own
  double clip = 0;           // largest norm of all gradients together; 0: no limit
  std::string lr_scale = "none";
  uint64_t base_batch = 0;
  std::string lr_decay = "constant";
  double min_lr = 0;
  uint64_t warmup = 0;
  std::string dtype = "fp32";

  std::string device = "cpu";      // or cuda, cuda:0,1: see device_of()
  int ranks = 0;                   // 0: as the environment says
  std::string strategy = "ddp";    // or dp: see strategy_dp.hpp
  std::string algorithm = "auto";  // of every operation that has it
  int compute_threads = 1;
  double bucket_cap_mb = 25;  // or kDdpAutoCap
  bool no_overlap = false;
  bool no_cuda_graph = false;
  bool tf32 = false;
  std::string average_over = "terms";
  bool join = false;
  bool no_broadcast_buffers = false;
  std::string compress = "none";
  std::string tied_rows = "auto";
  int zero = 0;  // 1: each rank keeps the optimizer's state of its share of the parameters only
  bool reproducible = false;
  std::string pace;
  /// Passes of each kind that measure computing and communication alone. The default depends on
  /// the number of steps (control_steps_of() in step/control.hpp).
  std::optional<uint64_t> control_steps;
  std::vector<uint64_t> scaling;  // numbers of ranks to run with, one after the other
  bool strong = false;            // scaling: the global batch stays, not the ranks'

  std::string checkpoint_dir;
  uint64_t checkpoint_every = 0;  // 0: at the end only
  int checkpoint_keep = 2;        // the newest
  bool resume = false;

  bool elastic = false;  // ranks that die are survived
  int min_ranks = 1;     // with fewer left the run ends

  std::string sabotage = "none";  // --break: what lessons show
  std::string lesson;             // instead of training; empty: none
  std::string lesson_folder;      // for what it makes; empty: build/lessons/NAME

  uint64_t log_every = 1;
  std::string json, trace;  // files; empty: none

  bool auto_buckets() const { return bucket_cap_mb == kDdpAutoCap; }
  /// Steps that the control run finishes: one to warm up.
  uint64_t control_rounds() const {
    const uint64_t measured = control_steps.value_or(0);
    return measured == 0 ? 0 : measured + 1;
  }
  bool on_gpu() const { return device != "cpu"; }
  /// Whether each rank has data of its own.
  bool data_by_rank() const { return data.find("{rank}") != std::string::npos; }
  /// The GPU of the rank with this number on its host, which has `count`: they take turns over
  /// those that --device names, or over all.
  int device_of(int local_rank, int count) const;
  /// Those that a sample's loss is of; 0: the model reads no tokens.
  size_t tokens_per_sample() const { return model == "gpt" ? context : 0; }
  /// Of parameters, gradients and arithmetic.
  DataType type() const {
    if (on_gpu() && dtype == "bf16") return DataType::kBFloat16;
    if (on_gpu() && dtype == "fp16") return DataType::kFloat16;
    return dtype == "fp64" ? DataType::kFloat64 : DataType::kFloat32;
  }
  /// Of gradients on their way. With low precision what the optimizer keeps is fp32.
  DataType wire_type() const {
    const std::string& wire = dtype == "bf16" || dtype == "fp16" ? dtype : compress;
    if (wire == "bf16") return DataType::kBFloat16;
    return wire == "fp16" ? DataType::kFloat16 : type();
  }
};

/// The options, or the exit code after help (0) or a message about what is wrong (not 0) has been
/// printed.
struct Parsed {
  std::optional<TrainOptions> options;
  int exit_code = 0;
};
Parsed parse_options(int argc, const char* const* argv);

/// All of them, as --json's `config` has them.
nlohmann::ordered_json to_json(const TrainOptions& options);

}  // namespace rondo::trainer
