// See same_run.hpp.
#include "trainer/checkpoint/same_run.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <string>

namespace rondo::trainer {
namespace {

/// Those that must equal the checkpoint's.
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

/// "ring, two-shot": by what each bucket travels.
std::string algorithms_of(const std::vector<CheckpointBucket>& buckets) {
  std::string names;
  for (const CheckpointBucket& b : buckets) names += (names.empty() ? "" : ", ") + b.algorithm;
  return names;
}

}  // namespace

Status require_same_run(const TrainOptions& options, const Dataset::Facts& data,
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

void warn_of_other_bits(const TrainOptions& options, uint64_t ranks,
                        const std::vector<CheckpointBucket>& buckets,
                        const CheckpointState& checkpoint) {
  if (options.reproducible && checkpoint.ranks == ranks) return;
  const bool same_layout = layout_hash(checkpoint.buckets) == layout_hash(buckets);
  const std::string then = algorithms_of(checkpoint.buckets), now = algorithms_of(buckets);
  if (checkpoint.ranks != ranks || !same_layout) {
    spdlog::warn(
        "it was made by {} ranks{}, now there are {}: the losses go on, but their last "
        "bits will differ from a run without interruption",
        checkpoint.ranks, same_layout ? "" : " with another bucket layout", ranks);
  } else if (then != now) {
    spdlog::warn(
        "its buckets travelled by {}, now by {}: another link profile (RONDO_LINKS) or machine; "
        "the losses go on, but their last bits will differ from a run without interruption",
        then, now);
  }
}

}  // namespace rondo::trainer
