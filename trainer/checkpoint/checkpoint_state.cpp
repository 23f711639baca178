// See checkpoint_state.hpp. Written as
//   {"format": "rondo checkpoint", "version": 1, "step": 12, ..., "schedule": {...},
//    "scaler": null, "layout_hash": "0123456789abcdef",
//    "buckets": [{"algorithm": "ring", "pieces": [["hidden1.bias", 0, 512], ...]}, ...], ...}
#include "trainer/checkpoint/checkpoint_state.hpp"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trainer/base/hash.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kFormat[] = "rondo checkpoint";
constexpr uint64_t kVersion = 1;

std::string hexadecimal(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

/// Reads entries of one JSON object until one is not as it should be; from then on it does nothing.
class Reader {
 public:
  Reader(const Json& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object.is_object()) fail("is no JSON object", where_);
  }

  /// Null after an error.
  const Json* entry(const std::string& key) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    fail("is missing", name_of(key));
    return nullptr;
  }
  void read(const std::string& key, uint64_t& value) {
    const Json* found = entry(key);
    if (found == nullptr) return;
    if (!found->is_number_unsigned()) return fail("is no whole number", name_of(key));
    value = found->get<uint64_t>();
  }
  void read(const std::string& key, double& value) {
    const Json* found = entry(key);
    if (found == nullptr) return;
    if (!found->is_number()) return fail("is no number", name_of(key));
    value = found->get<double>();
  }
  void read(const std::string& key, float& value) {
    double wide = 0;
    read(key, wide);
    if (!status_.ok()) return;
    if (std::abs(wide) > double{std::numeric_limits<float>::max()}) {
      return fail("is too large", name_of(key));
    }
    value = static_cast<float>(wide);
  }
  void read(const std::string& key, std::string& value) {
    const Json* found = entry(key);
    if (found == nullptr) return;
    if (!found->is_string()) return fail("is no text", name_of(key));
    value = found->get<std::string>();
  }
  void read_object(const std::string& key, Json& value) {
    const Json* found = entry(key);
    if (found == nullptr) return;
    if (!found->is_object()) return fail("is no JSON object", name_of(key));
    value = *found;
  }
  template <class Enum, size_t N>
  void read(const std::string& key, Enum& value, const std::string_view (&names)[N]) {
    std::string text;
    read(key, text);
    if (!status_.ok()) return;
    for (size_t i = 0; i < N; ++i) {
      if (names[i] != text) continue;
      value = static_cast<Enum>(i);
      return;
    }
    fail("is '" + text + "', which is none of its values", name_of(key));
  }

  std::string name_of(const std::string& key) const {
    return where_.empty() ? key : where_ + "." + key;
  }
  void fail(const std::string& why, const std::string& name) {
    if (status_.ok()) status_ = Status(Code::kDataError, "'" + name + "' " + why);
  }

 private:
  const Json& object_;
  const std::string where_;
  Status& status_;
};

OrderedJson schedule_to_json(const ScheduleOptions& schedule) {
  return {{"base_rate", schedule.base_rate},
          {"scale", kLrScaleNames[static_cast<int>(schedule.scale)]},
          {"base_batch", schedule.base_batch},
          {"global_batch", schedule.global_batch},
          {"warmup_steps", schedule.warmup_steps},
          {"decay", kLrDecayNames[static_cast<int>(schedule.decay)]},
          {"min_rate", schedule.min_rate},
          {"last_step", schedule.last_step}};
}

void read_schedule(Reader from, ScheduleOptions& schedule) {
  from.read("base_rate", schedule.base_rate);
  from.read("scale", schedule.scale, kLrScaleNames);
  from.read("base_batch", schedule.base_batch);
  from.read("global_batch", schedule.global_batch);
  from.read("warmup_steps", schedule.warmup_steps);
  from.read("decay", schedule.decay, kLrDecayNames);
  from.read("min_rate", schedule.min_rate);
  from.read("last_step", schedule.last_step);
}

OrderedJson scaler_to_json(const std::optional<LossScalerState>& scaler) {
  if (!scaler) return nullptr;
  return {{"scale", scaler->scale},
          {"good_steps", scaler->good_steps},
          {"skipped_steps", scaler->skipped_steps}};
}

void read_scaler(Reader from, LossScalerState& scaler) {
  from.read("scale", scaler.scale);
  from.read("good_steps", scaler.good_steps);
  from.read("skipped_steps", scaler.skipped_steps);
}

OrderedJson bucket_to_json(const CheckpointBucket& bucket) {
  OrderedJson pieces = OrderedJson::array();
  for (const BucketPiece& piece : bucket.pieces) {
    pieces.push_back(OrderedJson::array({piece.tensor, piece.first, piece.count}));
  }
  return {{"algorithm", bucket.algorithm}, {"pieces", std::move(pieces)}};
}

void read_bucket(Reader from, CheckpointBucket& bucket) {
  from.read("algorithm", bucket.algorithm);
  const Json* pieces = from.entry("pieces");
  if (pieces == nullptr) return;
  if (!pieces->is_array()) return from.fail("is no list", from.name_of("pieces"));
  for (const Json& piece : *pieces) {
    const bool sound = piece.is_array() && piece.size() == 3 && piece[0].is_string() &&
                       piece[1].is_number_unsigned() && piece[2].is_number_unsigned();
    if (!sound) {
      return from.fail("holds something other than [tensor, first, count]", from.name_of("pieces"));
    }
    bucket.pieces.push_back({.tensor = piece[0].get<std::string>(),
                             .first = piece[1].get<uint64_t>(),
                             .count = piece[2].get<uint64_t>()});
  }
}

void read_layout(Reader& from, Status& status, std::vector<CheckpointBucket>& buckets) {
  const Json* list = from.entry("buckets");
  if (list == nullptr) return;
  if (!list->is_array()) return from.fail("is no list", "buckets");
  for (const Json& bucket : *list) {
    const std::string name = "buckets[" + std::to_string(buckets.size()) + "]";
    read_bucket(Reader(bucket, name, status), buckets.emplace_back());
  }
  std::string hash;
  from.read("layout_hash", hash);
  if (status.ok() && hash != hexadecimal(layout_hash(buckets))) {
    from.fail("is " + hash + ", but that of the buckets is " + hexadecimal(layout_hash(buckets)),
              "layout_hash");
  }
}

}  // namespace

uint64_t layout_hash(const std::vector<CheckpointBucket>& buckets) {
  uint64_t hash = mix(buckets.size());
  for (const CheckpointBucket& bucket : buckets) {
    hash = mix(hash ^ bucket.pieces.size());
    for (const BucketPiece& piece : bucket.pieces) {
      hash = hash_bytes(piece.tensor.data(), piece.tensor.size(), hash);
      hash = mix(mix(hash ^ piece.first) ^ piece.count);
    }
  }
  return hash;
}

OrderedJson to_json(const CheckpointState& state) {
  OrderedJson json = {{"format", kFormat},
                      {"version", kVersion},
                      {"step", state.step},
                      {"epoch", state.epoch},
                      {"samples", state.samples},
                      {"seed", state.seed},
                      {"optimizer_steps", state.optimizer_steps},
                      {"ranks", state.ranks}};
  json["schedule"] = schedule_to_json(state.schedule);
  json["scaler"] = scaler_to_json(state.scaler);
  json["options"] = state.options;
  json["extra"] = state.extra;
  json["layout_hash"] = hexadecimal(layout_hash(state.buckets));
  json["buckets"] = OrderedJson::array();
  for (const CheckpointBucket& bucket : state.buckets) {
    json["buckets"].push_back(bucket_to_json(bucket));
  }
  return json;
}

Result<CheckpointState> parse_checkpoint_state(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Status(Code::kDataError, "it is no valid JSON");
  if (!json.is_object()) return Status(Code::kDataError, "it is no JSON object");
  Status status;
  CheckpointState state;
  Reader from(json, "", status);
  std::string format;
  uint64_t version = 0;
  from.read("format", format);
  if (format != kFormat) from.fail("is not '" + std::string(kFormat) + "'", "format");
  from.read("version", version);
  if (version != kVersion) {
    from.fail("is " + std::to_string(version) + ", but this rondo reads version " +
                  std::to_string(kVersion),
              "version");
  }
  from.read("step", state.step);
  from.read("epoch", state.epoch);
  from.read("samples", state.samples);
  from.read("seed", state.seed);
  from.read("optimizer_steps", state.optimizer_steps);
  from.read("ranks", state.ranks);
  if (const Json* schedule = from.entry("schedule")) {
    read_schedule(Reader(*schedule, "schedule", status), state.schedule);
  }
  if (const Json* scaler = from.entry("scaler"); scaler != nullptr && !scaler->is_null()) {
    read_scaler(Reader(*scaler, "scaler", status), state.scaler.emplace());
  }
  from.read_object("options", state.options);
  from.read_object("extra", state.extra);
  read_layout(from, status, state.buckets);
  if (!status.ok()) return status;
  return state;
}

}  // namespace rondo::trainer
