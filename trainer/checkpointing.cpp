// See checkpointing.hpp.
#include "trainer/checkpointing.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "trainer/buffer.hpp"
#include "trainer/checkpoint.hpp"
#include "trainer/files/disk.hpp"
#include "trainer/files/gpt2_weights.hpp"
#include "trainer/optimizer_files.hpp"
#include "trainer/rank_buffers.hpp"
#include "trainer/setup.hpp"
#include "trainer/sharding.hpp"
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
  std::vector<StateStorage> arrays;
  for (const auto& [name, values] : weights.optimizer().state()) arrays.push_back({name, values});
  return state_views(weights.ddp(), type_of<T>(), arrays);
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

/// "ring, two-shot": by what each bucket travels.
std::string algorithms_of(const std::vector<CheckpointBucket>& buckets) {
  std::string names;
  for (const CheckpointBucket& b : buckets) names += (names.empty() ? "" : ", ") + b.algorithm;
  return names;
}

/// What rank 0 reads, as words for all.
struct Restored {
  uint64_t found, step, epoch, consumed, optimizer_steps, good_steps, skipped_steps;
  double scale;
};

/// What a run must have in common with the one that it goes on with, and why it would mean
/// something else otherwise.
constexpr const char* kMustBeEqual[] = {
    "model", "layers",    "width",     "heads",        "context",     "vocabulary", "seed",
    "dtype", "optimizer", "drop_last", "sampler_tail", "data_format", "split_tied"};

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

/// What rank 0 has open while it hands the optimizer's state out.
struct Source {
  LoadedCheckpoint files;
  StateReader optimizer;
};

template <class T>
Result<Source> open_source(const Options& options, const Dataset::Facts& data,
                           Weights<T>& weights) {
  Result<LoadedCheckpoint> loaded = load_checkpoint(options.checkpoint_dir);
  RONDO_RETURN_IF_ERROR(loaded.status());
  RONDO_RETURN_IF_ERROR(require_same_run(options, data, loaded.value()));
  RONDO_RETURN_IF_ERROR(fill(loaded->model, model_views<T>(weights.ddp())));
  std::vector<std::string> arrays;
  for (const auto& [name, values] : weights.optimizer().state()) arrays.push_back(name);
  Result<StateReader> reader =
      StateReader::open(weights.ddp(), type_of<T>(), arrays, loaded->optimizer);
  RONDO_RETURN_IF_ERROR(reader.status());
  return Source{.files = std::move(loaded).value(), .optimizer = std::move(reader).value()};
}

template <class T>
Status read_state(const Options& options, const Communicator& communicator,
                  const LoadedCheckpoint& loaded, Weights<T>& weights, Restored& r,
                  std::vector<uint64_t>& positions) {
  const CheckpointState& state = loaded.state;
  const auto ranks = static_cast<uint64_t>(communicator.size());
  const std::vector<CheckpointBucket> buckets =
      buckets_of(weights.ddp(), plan_buckets(communicator, weights.ddp(), wire_type(options)));
  const bool same_layout = layout_hash(state.buckets) == layout_hash(buckets);
  const std::string then = algorithms_of(state.buckets), now = algorithms_of(buckets);
  spdlog::info("resuming after step {} of {}", state.step, loaded.folder);
  if (state.ranks != ranks || (!same_layout && !options.reproducible)) {
    spdlog::warn(
        "it was made by {} ranks{}, now there are {}: the losses go on, but their last "
        "bits will differ from a run without interruption",
        state.ranks, same_layout ? "" : " with another bucket layout", ranks);
  } else if (then != now && !options.reproducible) {
    spdlog::warn(
        "its buckets travelled by {}, now by {}: another link profile (RONDO_LINKS) or machine; "
        "the "
        "losses go on, but their last bits will differ from a run without interruption",
        then, now);
  }
  positions = state.extra.value("positions", std::vector<uint64_t>());
  if (options.data.find("{rank}") != std::string::npos && positions.size() != ranks) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' was made by {} ranks with data of their own, which "
                              "{} ranks cannot go on with: resume with as many ranks",
                              loaded.folder, state.ranks, ranks));
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

/// What rank 0 tells the others of a pending checkpoint: all but its folder, which they know.
struct Announcement {
  char temporary[4096];
  char state_hash[32];
};

/// Ok when all ranks are; also a barrier. Else what the first that is not has said, on every rank.
Status agree(Communicator& communicator, const Status& mine) {
  const uint64_t word = mine.ok() ? 0 : 1;
  std::vector<uint64_t> words(static_cast<size_t>(communicator.size()));
  RONDO_RETURN_IF_ERROR(communicator.all_gather(&word, words.data(), 1, DataType::kUint64));
  const auto failed = std::find(words.begin(), words.end(), uint64_t{1}) - words.begin();
  if (failed == communicator.size()) return {};
  char text[1024] = {};
  if (communicator.rank() == failed) mine.message().copy(text, sizeof text - 1);
  RONDO_RETURN_IF_ERROR(
      communicator.broadcast(text, text, sizeof text, DataType::kUint8, static_cast<int>(failed)));
  return Status(Code::kSystem, fmt::format("rank {}: {}", failed, text));
}

/// Collective. `state`: rank 0's.
template <class T>
Status save_shards(const Options& options, Communicator& communicator, const CheckpointState& state,
                   Weights<T>& weights) {
  const auto ranks = static_cast<uint64_t>(communicator.size());
  const bool root = communicator.rank() == 0;
  PendingCheckpoint pending;
  pending.folder = options.checkpoint_dir;
  Announcement told{};
  if (root) {
    Result<PendingCheckpoint> begun =
        begin_checkpoint(options.checkpoint_dir, state, model_views<T>(weights.ddp()), ranks);
    RONDO_RETURN_IF_ERROR(begun.status());  // the communicator's abort tells the others
    pending = std::move(begun).value();
    if (pending.temporary.size() >= sizeof told.temporary) {
      return Status(Code::kInvalidArgument, "--checkpoint-dir: the path is too long");
    }
    std::strcpy(told.temporary, pending.temporary.c_str());
    std::strcpy(told.state_hash, pending.state_hash.c_str());
  }
  RONDO_RETURN_IF_ERROR(communicator.broadcast(&told, &told, sizeof told, DataType::kUint8, 0));
  pending.temporary = told.temporary;
  pending.state_hash = told.state_hash;
  const Status written =
      write_shard(pending, static_cast<uint64_t>(communicator.rank()), optimizer_views(weights));
  const Status agreed = agree(communicator, written);
  if (agreed.ok()) return root ? commit_checkpoint(pending, options.checkpoint_keep) : agreed;
  if (root) (void)abandon_checkpoint(pending);
  // The first to end has the launcher stop the others: not before that is done.
  (void)communicator.barrier();
  return agreed;
}

/// Collective: everybody gets what it owns of what rank 0 reads. In pieces, so that a rank with a
/// shard never holds more than that.
template <class T>
Status hand_out(Communicator& communicator, const StateReader* source, Weights<T>& weights) {
  constexpr size_t kPiece = size_t{4} << 20;  // bytes
  const size_t elements = weights.ddp().parameter_elements();
  Buffer<T> piece(std::min(elements, kPiece / sizeof(T)));
  const auto state = weights.optimizer().state();
  for (size_t array = 0; array < state.size(); ++array) {
    for (size_t begin = 0; begin < elements; begin += piece.count()) {
      const size_t end = std::min(begin + piece.count(), elements);
      if (source != nullptr) source->read(array, begin, end - begin, piece.data());
      RONDO_RETURN_IF_ERROR(
          communicator.broadcast(piece.data(), piece.data(), end - begin, type_of<T>(), 0));
      for (const DdpRange& own : weights.ddp().own_ranges()) {
        const size_t first = std::max(own.begin, begin), last = std::min(own.end, end);
        if (first < last) {
          std::copy(piece.data() + (first - begin), piece.data() + (last - begin),
                    state[array].second + first);
        }
      }
    }
  }
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
  // Those that no broadcast makes equal.
  Result<std::vector<uint64_t>> buffers = std::vector<uint64_t>();
  if (options.no_broadcast_buffers) buffers = gather_buffers<T>(weights.ddp());
  RONDO_RETURN_IF_ERROR(buffers.status());
  const bool sharded = weights.ddp().is_sharded();
  if (communicator.rank() != 0) {
    return sharded ? save_shards(options, communicator, {}, weights) : Status();
  }
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
  if (!buffers.value().empty()) state.extra["buffers"] = buffers.value();
  if (weights.scaler()) state.scaler = weights.scaler()->state();
  if (sharded) return save_shards(options, communicator, state, weights);
  return save_checkpoint(options.checkpoint_dir, state, model_views<T>(weights.ddp()),
                         optimizer_views(weights), options.checkpoint_keep);
}

template <class T>
Result<Progress> restore(const Options& options, Communicator& communicator,
                         const Dataset::Facts& data, Weights<T>& weights) {
  Restored r{};
  std::vector<uint64_t> positions, buffers;
  std::optional<Source> source;  // rank 0's
  if (communicator.rank() == 0) {
    if (has_checkpoint(options.checkpoint_dir)) {
      Result<Source> opened = open_source(options, data, weights);
      RONDO_RETURN_IF_ERROR(opened.status());
      source = std::move(opened).value();
      RONDO_RETURN_IF_ERROR(
          read_state(options, communicator, source->files, weights, r, positions));
      buffers = source->files.state.extra.value("buffers", std::vector<uint64_t>());
    } else {
      spdlog::info("no checkpoint in '{}' yet: starting from the beginning",
                   options.checkpoint_dir);
    }
  }
  RONDO_RETURN_IF_ERROR(communicator.broadcast(&r, &r, sizeof r, DataType::kUint8, 0));
  if (r.step > 0) {
    RONDO_RETURN_IF_ERROR(hand_out(communicator, source ? &source->optimizer : nullptr, weights));
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
  Progress progress{.found = r.found != 0,
                    .step = r.step,
                    .position = {.epoch = r.epoch, .consumed = r.consumed},
                    .buffers = {}};
  if (!progress.found || !options.no_broadcast_buffers) return progress;
  Result<std::vector<uint64_t>> own = own_buffers<T>(weights.ddp(), std::move(buffers));
  RONDO_RETURN_IF_ERROR(own.status());
  progress.buffers = std::move(own).value();
  return progress;
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
Status load_weights(const Options& options, const Communicator& communicator, const Model<T>& model,
                    Weights<T>& weights) {
  if (communicator.rank() != 0) return {};
  if (options.width != options.heads * kGpt2HeadWidth) {
    spdlog::warn(
        "--heads {}: '{}' does not say how many heads its model has; those of --width {} are {} "
        "wide "
        "with this flag, GPT-2's are {}",
        options.heads, options.weights, options.width, options.width / options.heads,
        kGpt2HeadWidth);
  }
  const Result<TensorFile> file = TensorFile::open(options.weights);
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
template Status load_weights(const Options&, const Communicator&, const Model<float>&,
                             Weights<float>&);
template Status load_weights(const Options&, const Communicator&, const Model<double>&,
                             Weights<double>&);
template Status save_weights(const std::string&, const Communicator&, const Model<float>&,
                             Weights<float>&);
template Status save_weights(const std::string&, const Communicator&, const Model<double>&,
                             Weights<double>&);

}  // namespace rondo::trainer
