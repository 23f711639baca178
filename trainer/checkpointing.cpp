// See checkpointing.hpp.
#include "trainer/checkpointing.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "trainer/checkpoint.hpp"
#include "trainer/files/disk.hpp"
#include "trainer/files/gpt2_weights.hpp"
#include "trainer/summary.hpp"

namespace rondo::trainer {
namespace {

/// Where each tensor of `tensors` lies, `storage` being flat as the parameters are.
template <class T>
void add_views(const DistributedDataParallel& ddp, const std::string& prefix, const T* storage,
               std::vector<TensorView>& views) {
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    const DdpTensor& tensor = ddp.tensors()[t];
    if (tensor.adds_to >= 0) continue;
    views.push_back({.name = prefix + tensor.name,
                     .type = type_of<T>(),
                     .shape = tensor.shape,
                     .data = storage + ddp.offset(t)});
  }
}

template <class T>
void add_buffer_views(DistributedDataParallel& ddp, std::vector<TensorView>& views) {
  for (size_t b = 0; b < ddp.buffers().size(); ++b) {
    views.push_back({.name = ddp.buffers()[b].name,
                     .type = type_of<T>(),
                     .shape = ddp.buffers()[b].shape,
                     .data = ddp.buffer(b)});
  }
}

/// Copies what is in the file to where the views, which are this run's, point.
Status fill(const TensorFile& file, const std::vector<TensorView>& views) {
  for (const TensorView& view : views) {
    const TensorView* found = file.find(view.name);
    const auto refuse = [&](const std::string& why) {
      return Status(Code::kDataError, "checkpoint '" + file.path() + "': tensor '" + view.name +
                                          "' " + why +
                                          ": resume with the model, --dtype and --optimizer that "
                                          "it was made with");
    };
    if (found == nullptr) return refuse("is missing");
    if (found->shape != view.shape) {
      return refuse(fmt::format("has {} elements in another shape than this model's {}",
                                found->count(), view.count()));
    }
    if (found->type != view.type) {
      return refuse(fmt::format("is of type {}, not {}", name(found->type), name(view.type)));
    }
    std::memcpy(const_cast<void*>(view.data), found->data, view.bytes());
  }
  if (file.tensors().size() == views.size()) return {};
  return Status(Code::kDataError,
                fmt::format("checkpoint '{}': has {} tensors, but this run {}: resume with the "
                            "model, --dtype and --optimizer that it was made with",
                            file.path(), file.tensors().size(), views.size()));
}

template <class T>
std::vector<TensorView> model_views(DistributedDataParallel& ddp) {
  std::vector<TensorView> views;
  add_views(ddp, "", static_cast<const T*>(ddp.parameters()), views);
  add_buffer_views<T>(ddp, views);
  return views;
}

template <class T>
std::vector<TensorView> optimizer_views(Weights<T>& weights) {
  std::vector<TensorView> views;
  for (const auto& [name, values] : weights.optimizer().state()) {
    add_views(weights.ddp(), name + ".", values, views);
  }
  return views;
}

std::vector<CheckpointBucket> buckets_of(const DistributedDataParallel& ddp,
                                         const std::vector<Plan>& plans) {
  std::vector<CheckpointBucket> buckets;
  for (size_t b = 0; b < ddp.layout().size(); ++b) {
    CheckpointBucket bucket;
    if (!plans.empty()) bucket.algorithm = name(plans[b].algorithm);
    for (const DdpBucket::Piece& piece : ddp.layout()[b].pieces) {
      bucket.pieces.push_back({.tensor = ddp.tensors()[piece.tensor].name,
                               .first = piece.begin,
                               .count = piece.end - piece.begin});
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

/// What rank 0 reads, as words for all.
struct Restored {
  uint64_t found, step, epoch, consumed, optimizer_steps, good_steps, skipped_steps;
  double scale;
};

/// What a run must have in common with the one that it goes on with, and why it would mean
/// something else otherwise.
constexpr const char* kMustBeEqual[] = {"model",     "layers",      "width",     "heads",
                                        "context",   "vocabulary",  "seed",      "batch",
                                        "accum",     "dtype",       "optimizer", "sampler_tail",
                                        "drop_last", "data_format", "split_tied"};

/// "batch: 4, now 8" for each that differs.
std::string differences(const nlohmann::json& then, const nlohmann::json& now, bool must_be_equal) {
  std::string text;
  for (const auto& [key, value] : now.items()) {
    const bool fixed =
        std::find(std::begin(kMustBeEqual), std::end(kMustBeEqual), key) != std::end(kMustBeEqual);
    const bool ends = key == "steps" || key == "epochs" || key == "data" || key == "validation" ||
                      key == "workers" || key == "weights";
    if (fixed != must_be_equal || ends || !then.contains(key) || then[key] == value) continue;
    text += fmt::format("{}{}: {}, now {}", text.empty() ? "" : "; ", key, then[key].dump(),
                        value.dump());
  }
  return text;
}

Status require_same_run(const Options& options, const Dataset::Facts& data,
                        const LoadedCheckpoint& loaded) {
  const CheckpointState& state = loaded.state;
  const std::string fixed = differences(state.options, to_json(options), true);
  if (!fixed.empty()) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' is another run's ({}): resume with the same options",
                              loaded.folder, fixed));
  }
  const uint64_t hash = state.extra.value("data_hash", uint64_t{0});
  if (hash != data.hash && options.data.find("{rank}") == std::string::npos) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' was made on other data than '{}' ({} samples then, "
                              "{} now): its position would mean nothing",
                              loaded.folder, data.path, state.extra.value("samples", uint64_t{0}),
                              data.samples));
  }
  const std::string changed = differences(state.options, to_json(options), false);
  if (!changed.empty()) spdlog::warn("resuming with other options: {}", changed);
  return {};
}

template <class T>
Status load_on_root(const Options& options, uint64_t ranks, const Dataset::Facts& data,
                    Weights<T>& weights, Restored& r, std::vector<uint64_t>& positions) {
  const Result<LoadedCheckpoint> loaded = load_checkpoint(options.checkpoint_dir);
  RONDO_RETURN_IF_ERROR(loaded.status());
  const CheckpointState& state = loaded.value().state;
  RONDO_RETURN_IF_ERROR(require_same_run(options, data, loaded.value()));
  RONDO_RETURN_IF_ERROR(fill(loaded.value().model, model_views<T>(weights.ddp())));
  RONDO_RETURN_IF_ERROR(fill(loaded.value().optimizer, optimizer_views(weights)));
  const bool same_layout = layout_hash(state.buckets) == layout_hash(buckets_of(weights.ddp(), {}));
  spdlog::info("resuming after step {} of {}", state.step, loaded.value().folder);
  if (state.ranks != ranks || !same_layout) {
    spdlog::warn(
        "it was made by {} ranks{}, now there are {}: the losses go on, but their last "
        "bits will differ from a run without interruption",
        state.ranks, same_layout ? "" : " with another bucket layout", ranks);
  }
  positions = state.extra.value("positions", std::vector<uint64_t>());
  if (options.data.find("{rank}") != std::string::npos && positions.size() != ranks) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' was made by {} ranks with data of their own, which "
                              "{} ranks cannot go on with: resume with as many ranks",
                              loaded.value().folder, state.ranks, ranks));
  }
  r = {.found = 1,
       .step = state.step,
       .epoch = state.epoch,
       .consumed = state.samples,
       .optimizer_steps = state.optimizer_steps,
       .good_steps = state.scaler ? state.scaler->good_steps : 0,
       .skipped_steps = state.scaler ? state.scaler->skipped_steps : 0,
       .scale = state.scaler ? state.scaler->scale : 0};
  return {};
}

}  // namespace

Status try_outputs(const Options& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!options.checkpoint_dir.empty()) {
    if (!options.resume && has_checkpoint(options.checkpoint_dir)) {
      return Status(
          Code::kInvalidArgument,
          "--checkpoint-dir '" + options.checkpoint_dir +
              "' holds checkpoints already: add --resume to go on, or name another folder");
    }
    RONDO_RETURN_IF_ERROR(create_folder(options.checkpoint_dir));
    if (access(options.checkpoint_dir.c_str(), W_OK | X_OK) != 0) {
      return Status(Code::kSystem, "cannot write into --checkpoint-dir '" + options.checkpoint_dir +
                                       "': " + std::strerror(errno));
    }
  }
  if (options.save_weights.empty()) return {};
  const fs::path folder = fs::absolute(options.save_weights, error).parent_path();
  if (access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return Status(Code::kSystem, "cannot write --save-weights '" + options.save_weights +
                                   "': " + std::strerror(errno));
}

template <class T>
Status checkpoint(const Options& options, Communicator& communicator, const Progress& progress,
                  const ScheduleOptions& schedule, const Dataset::Facts& data,
                  const std::vector<Plan>& plans, Weights<T>& weights) {
  // Where each rank stands: with data of its own, each elsewhere.
  std::vector<uint64_t> positions(static_cast<size_t>(communicator.size()));
  RONDO_RETURN_IF_ERROR(
      communicator.all_gather(&progress.position.consumed, positions.data(), 1, DataType::kUint64));
  if (communicator.rank() != 0) return {};
  CheckpointState state{
      .step = progress.step,
      .epoch = progress.position.epoch,
      .samples = progress.position.consumed,
      .seed = options.seed,
      .optimizer_steps = weights.optimizer().steps(),
      .schedule = schedule,
      .scaler = {},
      .buckets = buckets_of(weights.ddp(), plans),
      .ranks = static_cast<uint64_t>(communicator.size()),
      .options = to_json(options),
      .extra = {{"data_hash", data.hash}, {"samples", data.samples}, {"positions", positions}}};
  if (weights.scaler()) state.scaler = weights.scaler()->state();
  return save_checkpoint(options.checkpoint_dir, state, model_views<T>(weights.ddp()),
                         optimizer_views(weights), options.checkpoint_keep);
}

template <class T>
Result<Progress> restore(const Options& options, Communicator& communicator,
                         const Dataset::Facts& data, Weights<T>& weights) {
  Restored r{};
  std::vector<uint64_t> positions;
  if (communicator.rank() == 0) {
    if (has_checkpoint(options.checkpoint_dir)) {
      RONDO_RETURN_IF_ERROR(load_on_root(options, static_cast<uint64_t>(communicator.size()), data,
                                         weights, r, positions));
    } else {
      spdlog::info("no checkpoint in '{}' yet: starting from the beginning",
                   options.checkpoint_dir);
    }
  }
  RONDO_RETURN_IF_ERROR(communicator.broadcast(&r, &r, sizeof r, DataType::kUint8, 0));
  for (const auto& [name, values] : weights.optimizer().state()) {
    RONDO_RETURN_IF_ERROR(communicator.broadcast(values, values, weights.ddp().parameter_elements(),
                                                 type_of<T>(), 0));
  }
  weights.optimizer().set_steps(r.optimizer_steps);
  if (weights.scaler() && r.scale > 0) {
    RONDO_RETURN_IF_ERROR(weights.scaler()->restore({.scale = static_cast<float>(r.scale),
                                                     .good_steps = r.good_steps,
                                                     .skipped_steps = r.skipped_steps}));
  }
  if (r.found != 0 && options.data.find("{rank}") != std::string::npos) {
    positions.resize(static_cast<size_t>(communicator.size()));
    RONDO_RETURN_IF_ERROR(communicator.broadcast(positions.data(), positions.data(),
                                                 positions.size(), DataType::kUint64, 0));
    r.consumed = positions[static_cast<size_t>(communicator.rank())];
  }
  return Progress{.found = r.found != 0,
                  .step = r.step,
                  .position = {.epoch = r.epoch, .consumed = r.consumed}};
}

namespace {

template <class T>
std::vector<T*> parameter_pointers(Weights<T>& weights) {
  std::vector<T*> values;
  for (size_t t = 0; t < weights.ddp().tensors().size(); ++t) {
    values.push_back(weights.ddp().tensors()[t].adds_to < 0 ? weights.ddp().template parameter<T>(t)
                                                            : nullptr);
  }
  return values;
}

}  // namespace

template <class T>
Status load_weights(const std::string& path, const Communicator& communicator,
                    const Model<T>& model, Weights<T>& weights) {
  if (communicator.rank() != 0) return {};
  const Result<TensorFile> file = TensorFile::open(path);
  RONDO_RETURN_IF_ERROR(file.status());
  return load_gpt2_weights<T>(file.value(), model.parameters(), parameter_pointers(weights));
}

template <class T>
Status save_weights(const std::string& path, const Communicator& communicator,
                    const Model<T>& model, Weights<T>& weights) {
  if (communicator.rank() != 0) return {};
  const std::vector<T*> values = parameter_pointers(weights);
  return save_gpt2_weights<T>(path, model.parameters(), {values.begin(), values.end()});
}

template Status checkpoint(const Options&, Communicator&, const Progress&, const ScheduleOptions&,
                           const Dataset::Facts&, const std::vector<Plan>&, Weights<float>&);
template Status checkpoint(const Options&, Communicator&, const Progress&, const ScheduleOptions&,
                           const Dataset::Facts&, const std::vector<Plan>&, Weights<double>&);
template Result<Progress> restore(const Options&, Communicator&, const Dataset::Facts&,
                                  Weights<float>&);
template Result<Progress> restore(const Options&, Communicator&, const Dataset::Facts&,
                                  Weights<double>&);
template Status load_weights(const std::string&, const Communicator&, const Model<float>&,
                             Weights<float>&);
template Status load_weights(const std::string&, const Communicator&, const Model<double>&,
                             Weights<double>&);
template Status save_weights(const std::string&, const Communicator&, const Model<float>&,
                             Weights<float>&);
template Status save_weights(const std::string&, const Communicator&, const Model<double>&,
                             Weights<double>&);

}  // namespace rondo::trainer
