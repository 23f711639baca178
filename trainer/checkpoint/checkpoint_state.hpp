// What a training run must remember besides tensors, as values, and as JSON in a checkpoint's
// state.json. Touches no disk.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/optim/loss_scaler.hpp"
#include "trainer/optim/schedule.hpp"

namespace rondo::trainer {

/// Elements [first, first + count) of a tensor, row-major.
struct BucketPiece {
  std::string tensor;
  uint64_t first = 0, count = 0;

  bool operator==(const BucketPiece&) const = default;
};

/// What travels together, in this order, and by which algorithm: the bits of a sum over ranks
/// depend on both.
struct CheckpointBucket {
  std::vector<BucketPiece> pieces;
  std::string algorithm;

  bool operator==(const CheckpointBucket&) const = default;
};

/// Of Dataset::Facts::hash in a checkpoint. Since version 2 that of token files is of a sample.
inline constexpr uint64_t kDataHashVersion = 2;

struct CheckpointState {
  uint64_t step = 0;             // the last one that was made
  uint64_t epoch = 0;            // the one that the next step's samples are of
  uint64_t samples = 0;          // consumed of that epoch, by all ranks together
  uint64_t seed = 0;             // keys the order of samples and all random numbers
  uint64_t optimizer_steps = 0;  // fewer than `step` where the loss scaler left some out
  ScheduleOptions schedule;
  std::optional<LossScalerState> scaler;
  std::vector<CheckpointBucket> buckets;
  uint64_t ranks = 1;
  nlohmann::json options = nlohmann::json::object();  // the command line's, as values
  nlohmann::json extra = nlohmann::json::object();    // whatever else the caller keeps

  bool operator==(const CheckpointState&) const = default;
};

/// Depends on every tensor's name, piece, order and bucket, not on the algorithms.
uint64_t layout_hash(const std::vector<CheckpointBucket>& buckets);

nlohmann::ordered_json to_json(const CheckpointState& state);

/// kDataError, naming the entry: one that is missing, of another type, or out of its range; a
/// version that is not this one; a layout that does not have the hash that stands beside it.
Result<CheckpointState> parse_checkpoint_state(const std::string& text);

}  // namespace rondo::trainer
