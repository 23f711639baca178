// Saving a run's state. See checkpointing.hpp.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "trainer/checkpoint/checkpoint.hpp"
#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/checkpoint/folder_lock.hpp"
#include "trainer/checkpoint/optimizer_files.hpp"
#include "trainer/checkpoint/rank_buffers.hpp"
#include "trainer/files/disk.hpp"
#include "trainer/files/tensor_views.hpp"

namespace rondo::trainer {
namespace {

template <class T>
std::vector<TensorView> optimizer_views(Weights<T>& weights) {
  std::vector<StateStorage> arrays;
  for (const auto& [name, values] : weights.optimizer().state()) arrays.push_back({name, values});
  return state_views(weights.ddp(), type_of<T>(), arrays);
}

/// What rank 0 sends to the others about a pending checkpoint: all but its folder, which they know.
struct Announcement {
  char temporary[4096];
  char state_hash[32];
};

/// Ok when all ranks are; also a barrier. Else the error of the first rank that failed, on every
/// rank.
Status agree(Communicator& communicator, const Status& mine) {
  const uint64_t word = mine.ok() ? 0 : 1;
  std::vector<uint64_t> words(static_cast<size_t>(communicator.size()));
  RONDO_TRY(communicator.all_gather(&word, words.data(), 1, DataType::kUint64));
  const auto failed = std::find(words.begin(), words.end(), uint64_t{1}) - words.begin();
  if (failed == communicator.size()) return {};
  char text[1024] = {};
  if (communicator.rank() == failed) mine.message().copy(text, sizeof text - 1);
  RONDO_TRY(
      communicator.broadcast(text, text, sizeof text, DataType::kUint8, static_cast<int>(failed)));
  return Status(Code::kSystem, fmt::format("rank {}: {}", failed, text));
}

/// Collective. `state`: rank 0's.
template <class T>
Status save_shards(const TrainOptions& options, Communicator& communicator,
                   const CheckpointState& state, Weights<T>& weights) {
  const auto ranks = static_cast<uint64_t>(communicator.size());
  const bool root = communicator.rank() == 0;
  PendingCheckpoint pending;
  pending.folder = options.checkpoint_dir;
  Announcement sent{};
  if (root) {
    Result<PendingCheckpoint> begun =
        begin_checkpoint(options.checkpoint_dir, state, model_views(weights.ddp()), ranks);
    RONDO_TRY(begun.status());  // the communicator's abort ends the others
    pending = std::move(begun).value();
    if (pending.temporary.size() >= sizeof sent.temporary) {
      return Status(Code::kInvalidArgument, "--checkpoint-dir: the path is too long");
    }
    std::strcpy(sent.temporary, pending.temporary.c_str());
    std::strcpy(sent.state_hash, pending.state_hash.c_str());
  }
  RONDO_TRY(communicator.broadcast(&sent, &sent, sizeof sent, DataType::kUint8, 0));
  pending.temporary = sent.temporary;
  pending.state_hash = sent.state_hash;
  const Status written =
      write_shard(pending, static_cast<uint64_t>(communicator.rank()), optimizer_views(weights));
  const Status agreed = agree(communicator, written);
  if (agreed.ok()) return root ? commit_checkpoint(pending, options.checkpoint_keep) : agreed;
  if (root) (void)abandon_checkpoint(pending);
  // The launcher stops the others when the first rank ends: not before the folder is removed.
  (void)communicator.barrier();
  return agreed;
}

}  // namespace

Status try_outputs(const TrainOptions& options) {
  if (!options.checkpoint_dir.empty()) {
    RONDO_TRY(create_folder(options.checkpoint_dir));
    if (access(options.checkpoint_dir.c_str(), W_OK | X_OK) != 0) {
      return Status(Code::kSystem, "cannot write into --checkpoint-dir '" + options.checkpoint_dir +
                                       "': " + std::strerror(errno));
    }
    RONDO_TRY(lock_folder(options.checkpoint_dir, kLockPatience));
    if (!options.resume && has_checkpoint(options.checkpoint_dir)) {
      return Status(
          Code::kInvalidArgument,
          "--checkpoint-dir '" + options.checkpoint_dir +
              "' holds checkpoints already: add --resume to go on, or name another folder");
    }
  }
  if (options.save_weights.empty()) return {};
  const Status weights = try_replace(options.save_weights);
  return weights.ok() ? weights : Status(weights.code(), "--save-weights: " + weights.message());
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

template <class T>
Status checkpoint(const TrainOptions& options, Communicator& communicator,
                  const TrainingProgress& progress, const ScheduleOptions& schedule,
                  const Dataset::Facts& data, const std::vector<CheckpointBucket>& buckets,
                  Weights<T>& weights) {
  // Where each rank stands, and in what: with data of its own, each elsewhere.
  const uint64_t own[] = {progress.position.consumed, data.hash};
  std::vector<uint64_t> of_ranks(2 * static_cast<size_t>(communicator.size()));
  RONDO_TRY(communicator.all_gather(own, of_ranks.data(), 2, DataType::kUint64));
  std::vector<uint64_t> positions, hashes;
  for (size_t i = 0; i < of_ranks.size(); i += 2) {
    positions.push_back(of_ranks[i]);
    if (options.data_by_rank()) hashes.push_back(of_ranks[i + 1]);
  }
  // Buffers that no broadcast makes equal.
  Result<std::vector<uint64_t>> buffers = std::vector<uint64_t>();
  if (options.no_broadcast_buffers) buffers = gather_buffers<T>(weights.ddp());
  RONDO_TRY(buffers.status());
  const bool sharded = weights.ddp().is_sharded();
  if (communicator.rank() != 0) {
    return sharded ? save_shards(options, communicator, {}, weights) : Status();
  }
  CheckpointState state{.step = progress.step,
                        .epoch = progress.position.epoch,
                        .samples = progress.position.consumed,
                        .seed = options.seed,
                        .optimizer_steps = weights.optimizer().steps(),
                        .schedule = schedule,
                        .scaler = {},
                        .buckets = buckets,
                        .ranks = static_cast<uint64_t>(communicator.size()),
                        .options = to_json(options),
                        .extra = {{"data_hash", data.hash},
                                  {"data_hash_version", kDataHashVersion},
                                  {"data_hashes", hashes},
                                  {"samples", data.samples},
                                  {"positions", positions}}};
  const DdpRelayout& relayout = weights.ddp().relayout();
  if (relayout.automatic && !relayout.pending) {
    for (const DdpBucket& bucket : weights.ddp().layout()) {
      state.extra["bucket_ends"].push_back(bucket.offset + bucket.count);
    }
  }
  if (!buffers.value().empty()) state.extra["buffers"] = buffers.value();
  if (weights.scaler()) state.scaler = weights.scaler()->state();
  // In the place of a rank that has died (--elastic). One that lives, and was left out, may hold it.
  (void)lock_folder(options.checkpoint_dir, std::chrono::milliseconds(0));
  if (sharded) return save_shards(options, communicator, state, weights);
  return save_checkpoint(options.checkpoint_dir, state, model_views(weights.ddp()),
                         optimizer_views(weights), options.checkpoint_keep);
}

template Status checkpoint(const TrainOptions&, Communicator&, const TrainingProgress&,
                           const ScheduleOptions&, const Dataset::Facts&,
                           const std::vector<CheckpointBucket>&, Weights<float>&);
template Status checkpoint(const TrainOptions&, Communicator&, const TrainingProgress&,
                           const ScheduleOptions&, const Dataset::Facts&,
                           const std::vector<CheckpointBucket>&, Weights<double>&);

}  // namespace rondo::trainer
