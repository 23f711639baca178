// Going on from a checkpoint. See checkpointing.hpp.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "trainer/base/buffer.hpp"
#include "trainer/checkpoint/checkpoint.hpp"
#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/checkpoint/folder_lock.hpp"
#include "trainer/checkpoint/optimizer_files.hpp"
#include "trainer/checkpoint/rank_buffers.hpp"
#include "trainer/files/tensor_views.hpp"
#include "trainer/optim/optimizer.hpp"

namespace rondo::trainer {
namespace {

/// Those that must equal the checkpoint's.
constexpr const char* kMustBeEqual[] = {
    "model", "layers",    "width", "heads", "context",   "vocabulary",   "seed",
    "dtype", "optimizer", "beta1", "beta2", "drop_last", "sampler_tail", "data_format"};

/// "width: 32, now 64" for each that differs.
std::string differences(const nlohmann::json& then, const nlohmann::json& now, bool must_be_equal) {
  std::string text;
  for (const auto& [key, value] : now.items()) {
    const bool fixed =
        std::find(std::begin(kMustBeEqual), std::end(kMustBeEqual), key) != std::end(kMustBeEqual);
    const bool ends = key == "steps" || key == "epochs" || key == "data" || key == "validation" ||
                      key == "workers" || key == "weights" || key == "control_steps";
    const bool of_the_batch = key == "batch" || key == "accum";  // see warn_of_other_losses()
    if (fixed != must_be_equal || ends || of_the_batch) continue;
    if (!then.contains(key) || then[key] == value) continue;
    text += fmt::format("{}{}: {}, now {}", text.empty() ? "" : "; ", key, then[key].dump(),
                        value.dump());
  }
  return text;
}

/// "ring, two-shot": by what each bucket travels.
std::string algorithms_of(const std::vector<CheckpointBucket>& buckets) {
  std::string names;
  for (const CheckpointBucket& b : buckets) names += (names.empty() ? "" : ", ") + b.algorithm;
  return names;
}

/// False for an older checkpoint, whose hash is of every token. Then only the numbers of samples are
/// compared.
bool has_comparable_hash(const CheckpointState& state) {
  return state.options.value("data_format", "") != "tokens" ||
         state.extra.value("data_hash_version", uint64_t{1}) == kDataHashVersion;
}

/// kDataError names the options that differ, or the data. Warns of options that may differ and do.
Status require_same_run(const TrainOptions& options, const Dataset::Facts& data,
                        const LoadedCheckpoint& loaded) {
  const CheckpointState& state = loaded.state;
  // Older checkpoints do not say them, because there were no others.
  const AdamWOptions standard;
  nlohmann::json then = {{"beta1", standard.beta1}, {"beta2", standard.beta2}};
  then.update(state.options);
  const std::string fixed = differences(then, to_json(options), true);
  if (!fixed.empty()) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' is another run's ({}): resume with the same options",
                              loaded.folder, fixed));
  }
  const uint64_t hash = state.extra.value("data_hash", uint64_t{0});
  // What older checkpoints do not say, may be.
  const auto by_rank = state.extra.find("data_hashes");
  const bool other_kind =
      by_rank != state.extra.end() && by_rank->empty() == options.data_by_rank();
  if (other_kind) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' was made with{} {{rank}} in --data, this run's '{}' "
                              "is another kind: its position would mean nothing",
                              loaded.folder, options.data_by_rank() ? "out" : "", options.data));
  }
  const bool differs = has_comparable_hash(state)
                           ? hash != data.hash
                           : state.extra.value("samples", data.samples) != data.samples;
  if (differs && !options.data_by_rank()) {
    return Status(Code::kDataError,
                  fmt::format("checkpoint '{}' was made on other data than '{}' ({} samples then, "
                              "{} now): its position would mean nothing",
                              loaded.folder, data.path, state.extra.value("samples", uint64_t{0}),
                              data.samples));
  }
  const std::string changed = differences(then, to_json(options), false);
  if (!changed.empty()) spdlog::warn("resuming with other options: {}", changed);
  return {};
}

/// "2 ranks with --batch 8", "1 rank with --batch 8 --accum 2".
std::string ranks_and_batch(uint64_t ranks, uint64_t batch, uint64_t accum) {
  return fmt::format("{} rank{} with --batch {}{}", ranks, ranks == 1 ? "" : "s", batch,
                     accum == 1 ? "" : fmt::format(" --accum {}", accum));
}

/// What rank 0 reads, as words for all.
struct Restored {
  uint64_t found, step, epoch, consumed, optimizer_steps, good_steps, skipped_steps, bucket_ends;
  double scale;
};

/// The files that rank 0 has open while it distributes the optimizer's state.
struct Source {
  LoadedCheckpoint files;
  StateReader optimizer;
};

Status fill_model(const TensorFile& file, DistributedDataParallel& ddp) {
  const char* const advice =
      ": resume with the model, --dtype and --optimizer that it was made with";
  const std::vector<TensorView> views = model_views(ddp);
  const Status filled = fill(file, views);
  if (!filled.ok()) return Status(filled.code(), "checkpoint " + filled.message() + advice);
  if (file.tensors().size() == views.size()) return {};
  return Status(Code::kDataError,
                fmt::format("checkpoint '{}': has {} tensors, but this run {}{}", file.path(),
                            file.tensors().size(), views.size(), advice));
}

template <class T>
Result<Source> open_source(const TrainOptions& options, const Dataset::Facts& data,
                           Weights<T>& weights) {
  LoadedCheckpoint loaded = RONDO_TRY(load_checkpoint(options.checkpoint_dir));
  RONDO_TRY(require_same_run(options, data, loaded));
  RONDO_TRY(fill_model(loaded.model, weights.ddp()));
  std::vector<std::string> arrays;
  for (const auto& [name, values] : weights.optimizer().state()) arrays.push_back(name);
  StateReader reader =
      RONDO_TRY(StateReader::open(weights.ddp(), type_of<T>(), arrays, loaded.optimizer));
  return Source{.files = std::move(loaded), .optimizer = std::move(reader)};
}

template <class T>
Status read_state(const TrainOptions& options, const Communicator& communicator,
                  const LoadedCheckpoint& loaded, Weights<T>& weights, Restored& r,
                  std::vector<uint64_t>& positions) {
  const CheckpointState& state = loaded.state;
  const auto ranks = static_cast<uint64_t>(communicator.size());
  spdlog::info("resuming after step {} of {}", state.step, loaded.folder);
  const auto ends = state.extra.value("bucket_ends", std::vector<size_t>());
  // A tied tensor's second gradient has buckets, though no parameters.
  const bool same_tensors = state.options.value("split_tied", true) == !options.no_split_tied;
  const bool same_buckets =
      options.auto_buckets() && !ends.empty() && state.ranks == ranks && same_tensors;
  if (same_buckets) {
    RONDO_TRY(weights.ddp().set_bucket_ends(ends));
    spdlog::info("{} buckets, as measured then", ends.size());
  }
  positions = state.extra.value("positions", std::vector<uint64_t>());
  if (options.data_by_rank() && positions.size() != ranks) {
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
       .bucket_ends = same_buckets ? ends.size() : 0,
       .scale = state.scaler ? state.scaler->scale : 0};
  return {};
}

/// Collective: `count` buckets of rank 0 become every rank's.
template <class T>
Status share_buckets(Communicator& communicator, size_t count, Weights<T>& weights) {
  if (count == 0) return {};
  std::vector<size_t> ends;
  for (const DdpBucket& bucket : weights.ddp().layout()) {
    ends.push_back(bucket.offset + bucket.count);
  }
  ends.resize(count);
  RONDO_TRY(communicator.broadcast(ends.data(), ends.data(), count, DataType::kUint64, 0));
  RONDO_TRY(weights.ddp().set_bucket_ends(ends));
  weights.use_layout();
  return {};
}

/// Collective: every rank gets the part that it owns of the optimizer's state that rank 0 reads. In
/// pieces, so that a rank with a shard never holds more than that.
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
      RONDO_TRY(communicator.broadcast(piece.data(), piece.data(), end - begin, type_of<T>(), 0));
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

void warn_of_other_losses(const TrainOptions& options, uint64_t ranks,
                          const std::vector<CheckpointBucket>& buckets,
                          const CheckpointOrigin& then) {
  const std::string made_by = ranks_and_batch(then.ranks, then.batch, then.accum);
  const std::string now = ranks_and_batch(ranks, options.batch, options.accum);
  const uint64_t batch_then = then.ranks * then.batch * then.accum;
  const uint64_t batch_now = ranks * options.batch * options.accum;
  if (batch_now != batch_then) {
    spdlog::warn(
        "the checkpoint was made by {}, a global batch of {}; this run has {}, a global batch of "
        "{}: the losses will differ from a run without interruption. Choose --batch and --accum "
        "whose product with the number of ranks is {}, or adapt the learning rate",
        made_by, batch_then, now, batch_now, batch_then);
    return;
  }
  if (options.reproducible && made_by == now) return;
  const std::string by = algorithms_of(then.buckets), by_now = algorithms_of(buckets);
  std::string why;
  if (made_by != now) {
    why = fmt::format("the checkpoint was made by {}, this run has {}", made_by, now);
  } else if (layout_hash(then.buckets) != layout_hash(buckets)) {
    why = "the checkpoint was made with another bucket layout";
  } else if (by != by_now) {
    why = fmt::format(
        "the checkpoint's buckets travelled by {}, now by {}: another link profile (RONDO_LINKS) "
        "or machine",
        by, by_now);
  }
  if (why.empty()) return;
  spdlog::warn(
      "{}; training continues, but the losses' last bits will differ from a run without "
      "interruption",
      why);
}

template <class T>
Result<TrainingProgress> restore(const TrainOptions& options, Communicator& communicator,
                                 const Dataset::Facts& data, Weights<T>& weights) {
  Restored r{};
  std::vector<uint64_t> positions, buffers;
  std::optional<Source> source;            // rank 0's
  std::optional<CheckpointOrigin> origin;  // rank 0's
  if (communicator.rank() == 0) {
    // Already here: what a run under way saves after this would be lost. See try_outputs() for others.
    if (!options.elastic) RONDO_TRY(lock_folder(options.checkpoint_dir, kLockPatience));
    if (has_checkpoint(options.checkpoint_dir)) {
      source = RONDO_TRY(open_source(options, data, weights));
      RONDO_TRY(read_state(options, communicator, source->files, weights, r, positions));
      const CheckpointState& state = source->files.state;
      buffers = state.extra.value("buffers", std::vector<uint64_t>());
      origin = {.ranks = state.ranks,
                .batch = state.options.value("batch", options.batch),
                .accum = state.options.value("accum", options.accum),
                .buckets = state.buckets};
    } else {
      spdlog::info("no checkpoint in '{}' yet: starting from the beginning",
                   options.checkpoint_dir);
    }
  }
  RONDO_TRY(communicator.broadcast(&r, &r, sizeof r, DataType::kUint8, 0));
  RONDO_TRY(share_buckets(communicator, r.bucket_ends, weights));
  if (r.step > 0) {
    RONDO_TRY(hand_out(communicator, source ? &source->optimizer : nullptr, weights));
  }
  weights.optimizer().set_steps(r.optimizer_steps);
  if (weights.scaler() && r.scale > 0) {
    RONDO_TRY(weights.scaler()->restore({.scale = static_cast<float>(r.scale),
                                         .good_steps = r.good_steps,
                                         .skipped_steps = r.skipped_steps}));
  }
  if (r.found != 0 && options.data_by_rank()) {
    const auto ranks = static_cast<size_t>(communicator.size());
    // Hashes after the positions; an older checkpoint has none, and then they are this run's.
    std::vector<uint64_t> now(ranks);
    RONDO_TRY(communicator.all_gather(&data.hash, now.data(), 1, DataType::kUint64));
    positions.resize(2 * ranks);
    if (source) {
      const CheckpointState& state = source->files.state;
      const auto then = state.extra.value("data_hashes", std::vector<uint64_t>());
      const bool comparable = then.size() == ranks && has_comparable_hash(state);
      for (size_t i = 0; i < ranks; ++i) positions[ranks + i] = comparable ? then[i] : now[i];
    }
    RONDO_TRY(communicator.broadcast(positions.data(), positions.data(), positions.size(),
                                     DataType::kUint64, 0));
    for (size_t other = 0; other < ranks; ++other) {
      if (positions[ranks + other] == now[other]) continue;
      return Status(Code::kDataError,
                    fmt::format("the checkpoint in '{}' was made on other data of rank {} than "
                                "'{}': its position would mean nothing",
                                options.checkpoint_dir, other, path_for_rank(options.data, other)));
    }
    r.consumed = positions[static_cast<size_t>(communicator.rank())];
  }
  TrainingProgress progress{.found = r.found != 0,
                            .step = r.step,
                            .position = {.epoch = r.epoch, .consumed = r.consumed},
                            .buffers = {},
                            .origin = std::move(origin)};
  if (!progress.found || !options.no_broadcast_buffers) return progress;
  progress.buffers = RONDO_TRY(own_buffers<T>(weights.ddp(), std::move(buffers)));
  return progress;
}

template Result<TrainingProgress> restore(const TrainOptions&, Communicator&, const Dataset::Facts&,
                                          Weights<float>&);
template Result<TrainingProgress> restore(const TrainOptions&, Communicator&, const Dataset::Facts&,
                                          Weights<double>&);

}  // namespace rondo::trainer
