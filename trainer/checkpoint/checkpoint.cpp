// See checkpoint.hpp.
#include "trainer/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "trainer/base/hash.hpp"
#include "trainer/files/disk.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step-";
constexpr char kLatest[] = "/latest";
constexpr char kModel[] = "/model.safetensors";
constexpr char kState[] = "/state.json";
constexpr char kShards[] = "optimizer_shards";  // in state.extra: how many; absent: one file
constexpr char kStateKey[] = "rondo.state";     // metadata: the hash of state.json

std::string folder_name(uint64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%s%08" PRIu64, kPrefix, step);
  return text;
}

/// The step of a name that folder_name() gives.
std::optional<uint64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* digits = name.c_str() + std::strlen(kPrefix);
  uint64_t step = 0;
  const auto parsed = std::from_chars(digits, name.c_str() + name.size(), step);
  if (parsed.ec != std::errc() || folder_name(step) != name) return std::nullopt;
  return step;
}

std::string hash_of(const std::string& text) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016" PRIx64, hash_bytes(text.data(), text.size()));
  return hash;
}

/// Names in a folder; none where it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().native());
  }
  return names;
}

/// Steps of which there is a folder, newest first.
std::vector<uint64_t> steps_in(const std::string& folder) {
  std::vector<uint64_t> steps;
  for (const std::string& name : names_in(folder)) {
    if (const std::optional<uint64_t> step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

Status remove_leftovers(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    const bool ours = name.starts_with(std::string(".") + kPrefix) || name.starts_with(".latest.");
    if (!ours || !is_temporary_name(name)) continue;
    RONDO_TRY(remove_with_content(folder + "/" + name));
  }
  return {};
}

/// Hidden first: one that is only partly removed must not look like a checkpoint.
Status remove_old(const std::string& folder, uint64_t newest, size_t keep) {
  size_t kept = 0;
  for (const uint64_t step : steps_in(folder)) {
    if (step > newest || ++kept <= keep) continue;
    const std::string path = folder + "/" + folder_name(step);
    RONDO_TRY(exchange_folder(path, temporary_name(path)));
    RONDO_TRY(remove_with_content(temporary_name(path)));
  }
  return {};
}

/// Of this shard, or of the whole state.
std::string optimizer_file(std::optional<uint64_t> shard) {
  std::string name = "/optimizer";
  if (shard) name.append("-").append(std::to_string(*shard));
  return name.append(".safetensors");
}

/// A tensor file that belongs to this state.json.
Result<TensorFile> open_belonging(const std::string& path, const std::string& state_hash) {
  TensorFile file = RONDO_TRY(TensorFile::open(path));
  const auto belongs_to = file.metadata().find(kStateKey);
  if (file.has_checksum() && belongs_to != file.metadata().end() &&
      belongs_to->second == state_hash) {
    return file;
  }
  return Status(Code::kDataError, "tensor file '" + path +
                                      "' does not belong to the state.json beside it: one of them "
                                      "was changed or is another checkpoint's");
}

/// 0: the optimizer's state is in one file.
Result<uint64_t> shards_of(const CheckpointState& state) {
  const auto found = state.extra.find(kShards);
  if (found == state.extra.end()) return uint64_t{0};
  if (found->is_number_unsigned() && found->get<uint64_t>() > 0) return found->get<uint64_t>();
  return Status(Code::kDataError, std::string("'extra.") + kShards + "' is no number of files");
}

Result<LoadedCheckpoint> load_folder(const std::string& folder) {
  const std::string text = RONDO_TRY(read_text_file(folder + kState));
  Result<CheckpointState> state = parse_checkpoint_state(text);
  if (!state.ok()) {
    return Status(Code::kDataError, "'" + folder + kState + "': " + state.status().message());
  }
  const std::string hash = hash_of(text);
  TensorFile model = RONDO_TRY(open_belonging(folder + kModel, hash));
  LoadedCheckpoint loaded{.folder = folder,
                          .state = std::move(state).value(),
                          .model = std::move(model),
                          .optimizer = {}};
  const Result<uint64_t> shards = shards_of(loaded.state);
  if (!shards.ok()) {
    return Status(Code::kDataError, "'" + folder + kState + "': " + shards.status().message());
  }
  for (uint64_t shard = 0; shard < std::max<uint64_t>(shards.value(), 1); ++shard) {
    loaded.optimizer.push_back(RONDO_TRY(open_belonging(
        folder + optimizer_file(shards.value() == 0 ? std::nullopt : std::optional(shard)), hash)));
  }
  return loaded;
}

/// What is wrong, and what could be used instead.
Status with_alternative(const std::string& folder, const std::string& what) {
  for (const uint64_t step : steps_in(folder)) {
    const std::string name = folder_name(step);
    if (!load_folder(folder + "/" + name).ok()) continue;
    return Status(Code::kDataError, "checkpoint: " + what + ". The newest intact checkpoint is '" +
                                        folder + "/" + name + "'; to go on from it, write " + name +
                                        " into '" + folder + kLatest + "'");
  }
  return Status(Code::kDataError,
                "checkpoint: " + what + ". No checkpoint in '" + folder + "' is intact");
}

/// The text of state.json.
Result<std::string> text_of(const CheckpointState& state) try {
  std::string text = to_json(state).dump(1) + "\n";
  const auto readable = parse_checkpoint_state(text);
  if (readable.ok()) return text;
  return Status(Code::kInvalidArgument,  // NaN, for one
                "checkpoint: the state cannot be saved: " + readable.status().message());
} catch (const nlohmann::json::exception& error) {
  return Status(Code::kInvalidArgument,
                std::string("checkpoint: the state is no JSON: ") + error.what());
}

std::map<std::string, std::string> metadata_of(const std::string& state_hash) {
  return {{kStateKey, state_hash}};
}

/// `optimizer`: all of it; none where shards follow.
Status write_folder(const PendingCheckpoint& pending, const std::string& state,
                    std::span<const TensorView> model,
                    const std::span<const TensorView>* optimizer) {
  const std::map<std::string, std::string> metadata = metadata_of(pending.state_hash);
  RONDO_TRY(create_folder(pending.temporary));
  RONDO_TRY(write_tensor_file(pending.temporary + kModel, model, metadata));
  if (optimizer != nullptr) {
    RONDO_TRY(
        write_tensor_file(pending.temporary + optimizer_file(std::nullopt), *optimizer, metadata));
  }
  const DiskPiece piece{state.data(), state.size()};
  return replace_file(pending.temporary + kState, {&piece, 1});
}

Result<PendingCheckpoint> begin(const std::string& folder, const CheckpointState& state,
                                std::span<const TensorView> model,
                                const std::span<const TensorView>* optimizer) {
  const std::string text = RONDO_TRY(text_of(state));
  const std::string path = folder + "/" + folder_name(state.step);
  const PendingCheckpoint pending{.folder = folder,
                                  .step = state.step,
                                  .temporary = temporary_name(path),
                                  .state_hash = hash_of(text)};
  RONDO_TRY(create_folder(folder));
  RONDO_TRY(remove_leftovers(folder));
  const Status written = write_folder(pending, text, model, optimizer);
  if (written.ok()) return pending;
  (void)abandon_checkpoint(pending);
  return written;
}

}  // namespace

Result<PendingCheckpoint> begin_checkpoint(const std::string& folder, const CheckpointState& state,
                                           std::span<const TensorView> model, uint64_t shards) {
  CheckpointState with_shards = state;
  with_shards.extra[kShards] = shards;
  return begin(folder, with_shards, model, nullptr);
}

Status write_shard(const PendingCheckpoint& pending, uint64_t shard,
                   std::span<const TensorView> optimizer) {
  std::error_code ignored;
  if (!fs::is_directory(pending.temporary, ignored)) {
    return Status(Code::kSystem, "checkpoint: '" + pending.temporary +
                                     "' is not there: with shards every rank writes into the same "
                                     "folder, so all must see it");
  }
  return write_tensor_file(pending.temporary + optimizer_file(shard), optimizer,
                           metadata_of(pending.state_hash));
}

Status commit_checkpoint(const PendingCheckpoint& pending, int keep) {
  RONDO_CHECK(keep >= 1, "%d checkpoints to keep", keep);
  const std::string name = folder_name(pending.step);
  const Status status = exchange_folder(pending.temporary, pending.folder + "/" + name);
  // What failed, or what had this name before.
  const Status removed = abandon_checkpoint(pending);
  RONDO_TRY(status);
  const std::string line = name + "\n";
  const DiskPiece piece{line.data(), line.size()};
  RONDO_TRY(replace_file(pending.folder + kLatest, {&piece, 1}));
  RONDO_TRY(removed);
  return remove_old(pending.folder, pending.step, static_cast<size_t>(keep));
}

Status abandon_checkpoint(const PendingCheckpoint& pending) {
  return remove_with_content(pending.temporary);
}

Status save_checkpoint(const std::string& folder, const CheckpointState& state,
                       std::span<const TensorView> model, std::span<const TensorView> optimizer,
                       int keep) {
  const PendingCheckpoint pending = RONDO_TRY(begin(folder, state, model, &optimizer));
  return commit_checkpoint(pending, keep);
}

Result<LoadedCheckpoint> load_checkpoint(const std::string& folder) {
  const Result<std::string> latest = read_text_file(folder + kLatest);
  if (!latest.ok()) {
    // The first save died just before it named its folder: there is no other that could be meant.
    const std::vector<uint64_t> steps = steps_in(folder);
    std::error_code ignored;
    if (steps.size() == 1 && !fs::exists(folder + kLatest, ignored)) {
      Result<LoadedCheckpoint> only = load_folder(folder + "/" + folder_name(steps.front()));
      if (only.ok()) return only;
    }
    return with_alternative(folder, latest.status().message());
  }
  std::string name = latest.value();
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back())) != 0) {
    name.pop_back();
  }
  if (!step_of(name)) {
    return with_alternative(folder, "'" + folder + kLatest + "' holds '" + name.substr(0, 40) +
                                        "', which is no checkpoint's name");
  }
  Result<LoadedCheckpoint> loaded = load_folder(folder + "/" + name);
  if (!loaded.ok()) return with_alternative(folder, loaded.status().message());
  return loaded;
}

bool has_checkpoint(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(folder + kLatest, ignored) || !steps_in(folder).empty();
}

}  // namespace rondo::trainer
