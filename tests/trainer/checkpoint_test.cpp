// Checkpoints: all of a run's state comes back, and neither a crash nor damage goes unnoticed or
// costs what was there before.
#include "trainer/checkpoint/checkpoint.hpp"

#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/crash.hpp"
#include "tests/trainer/files.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::trainer::testing;
using rondo::testing::contains;
using rondo::testing::kSanitized;
using rondo::testing::TempDirectory;
namespace fs = std::filesystem;
using Names = std::set<std::string>;

namespace {

constexpr char kFolderOf12[] = "/step-00000012";

/// A run's state at a step: every value another one.
struct Run {
  CheckpointState state;
  std::vector<float> weight, mean;
  std::vector<TensorView> model, optimizer;

  explicit Run(uint64_t step) : weight(12), mean(40) {
    for (size_t i = 0; i < 12; ++i) weight[i] = static_cast<float>(100 * step + i);
    for (size_t i = 0; i < 40; ++i) mean[i] = static_cast<float>(step) / static_cast<float>(i + 1);
    model = {{.name = "w", .type = DataType::kFloat32, .shape = {3, 4}, .data = weight.data()}};
    optimizer = {
        {.name = "exp_avg.w", .type = DataType::kFloat32, .shape = {40}, .data = mean.data()}};
    state = {.step = step,
             .epoch = 3,
             .samples = 1000 + step,
             .seed = 0xfedcba9876543210ull,
             .optimizer_steps = step - 1,
             .schedule = {.base_rate = 0.1,
                          .scale = LrScale::kSqrt,
                          .base_batch = 32,
                          .global_batch = 96,
                          .warmup_steps = 5,
                          .decay = LrDecay::kCosine,
                          .min_rate = 1e-9 / 3,
                          .last_step = 77},
             .scaler = LossScalerState{.scale = 0x1p-3f, .good_steps = 4, .skipped_steps = 2},
             .buckets = {{.pieces = {{"b", 0, 4}, {"w", 0, 7}}, .algorithm = "ring"},
                         {.pieces = {{"w", 7, 5}}, .algorithm = "two-shot-direct"}},
             .ranks = 3};
    state.options = {{"model", "mlp"}, {"width", 512}, {"lr", 0.1}};
    state.extra = {{"note", "anything"}, {"list", {1, 2.5, nullptr}}};
  }
  Run(const Run&) = delete;

  Status save(const std::string& folder, int keep = 2) const {
    return save_checkpoint(folder, state, model, optimizer, keep);
  }
};

/// A folder that checkpoints are saved into.
struct Place {
  const TempDirectory folder;
  const std::string path = folder.path();

  void save(const std::vector<uint64_t>& steps) const {
    for (const uint64_t step : steps) REQUIRE(Run(step).save(path).ok());
  }
};

void check_same(const TensorFile& file, const std::vector<TensorView>& tensors) {
  REQUIRE(file.tensors().size() == tensors.size());
  for (const TensorView& tensor : tensors) {
    const TensorView* found = file.find(tensor.name);
    REQUIRE(found != nullptr);
    REQUIRE(found->shape == tensor.shape);
    REQUIRE(std::memcmp(found->data, tensor.data, tensor.bytes()) == 0);
  }
}

/// The step that is loaded, all of which must be what Run(step) saved.
uint64_t loaded_step(const std::string& folder) {
  const Result<LoadedCheckpoint> loaded = load_checkpoint(folder);
  INFO(loaded.status().to_string());
  REQUIRE(loaded.ok());
  const Run expected(loaded.value().state.step);
  REQUIRE(loaded.value().state == expected.state);
  check_same(loaded.value().model, expected.model);
  REQUIRE(loaded.value().optimizer.size() == 1);
  check_same(loaded.value().optimizer[0], expected.optimizer);
  return loaded.value().state.step;
}

std::string refusal(const std::string& folder) {
  const Result<LoadedCheckpoint> loaded = load_checkpoint(folder);
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.status().code() == Code::kDataError);
  return loaded.status().message();
}

}  // namespace

TEST_CASE("checkpoint: everything comes back") {
  const TempDirectory parent;
  const std::string folder = parent.path() + "/not/yet/there";
  CHECK_FALSE(has_checkpoint(folder));
  REQUIRE(Run(12).save(folder).ok());
  CHECK(has_checkpoint(folder));
  CHECK(loaded_step(folder) == 12);
  CHECK(load_checkpoint(folder).value().folder == folder + kFolderOf12);
  CHECK(names_in(folder) == Names{"latest", "step-00000012"});
  CHECK(names_in(folder + kFolderOf12) ==
        Names{"model.safetensors", "optimizer.safetensors", "state.json"});
  CHECK(read_text(folder + "/latest") == "step-00000012\n");
}

TEST_CASE_METHOD(Place, "checkpoint: without a loss scaler, buckets and options") {
  CheckpointState state;
  state.step = 123456789012;
  REQUIRE(save_checkpoint(path, state, {}, {}).ok());
  const Result<LoadedCheckpoint> loaded = load_checkpoint(path);
  REQUIRE(loaded.ok());
  CHECK(loaded.value().state == state);
  CHECK(loaded.value().folder == path + "/step-123456789012");
}

TEST_CASE("checkpoint: the same state is the same bytes") {
  const TempDirectory a, b;
  REQUIRE(Run(12).save(a.path()).ok());
  REQUIRE(Run(12).save(b.path()).ok());
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/state.json"}) {
    CHECK(read_text(a.path() + kFolderOf12 + file) == read_text(b.path() + kFolderOf12 + file));
  }
}

TEST_CASE_METHOD(Place, "checkpoint: the newest are kept, and nothing else is touched") {
  write_file(path + "/notes.txt", "mine");
  write_file(path + "/step-7", "no checkpoint");
  save({1000});  // another history's
  for (uint64_t step = 2; step <= 10; step += 2) {
    REQUIRE(Run(step).save(path, 3).ok());
    CHECK(loaded_step(path) == step);
  }
  CHECK(names_in(path) == Names{"latest", "notes.txt", "step-7", "step-00000006", "step-00000008",
                                "step-00000010", "step-00001000"});
  REQUIRE(Run(12).save(path, 1).ok());
  CHECK(names_in(path) == Names{"latest", "notes.txt", "step-7", "step-00000012", "step-00001000"});
}

TEST_CASE_METHOD(Place, "checkpoint: a step that is saved again replaces its own") {
  save({12});
  Run other(12);
  other.state.seed = 1;
  REQUIRE(other.save(path).ok());
  CHECK(load_checkpoint(path).value().state == other.state);
  CHECK(names_in(path) == Names{"latest", "step-00000012"});
}

TEST_CASE_METHOD(Place,
                 "checkpoint: what a dead writer left is ignored, and removed by the next save") {
  save({2});
  const std::string leftover = path + "/.step-00000004.tmp.4711";
  fs::create_directories(leftover + "/deep");
  write_file(leftover + "/model.safetensors", "half");
  write_file(path + "/.latest.tmp.4711", "step-");
  write_file(path + "/.mine", "hidden, but nobody's leftover");
  CHECK(loaded_step(path) == 2);
  save({4});
  CHECK(names_in(path) == Names{".mine", "latest", "step-00000002", "step-00000004"});
}

TEST_CASE_METHOD(Place,
                 "checkpoint: a save that dies before any change to the disk costs nothing") {
  const bool same_step = GENERATE(false, true);  // replaces the very one that `latest` names
  save({2, 4});
  const Run next(same_step ? 4 : 6);
  size_t deaths = 0;
  bool new_seen = false;
  for (;; ++deaths) {
    if (!dies_before_change(deaths, [&] { (void)next.save(path); })) break;
    const uint64_t step = loaded_step(path);
    REQUIRE((step == 4 || step == next.state.step));
    if (step == 6) new_seen = true;
    REQUIRE((!new_seen || step == 6));  // it never goes back
  }
  CHECK(deaths > 20);
  CHECK(new_seen == !same_step);  // the removal of old ones comes after
  CHECK(loaded_step(path) == next.state.step);
  save({8});
  CHECK(names_in(path).size() == 3);
}

TEST_CASE_METHOD(Place, "checkpoint: a first save that dies leaves nothing, or all of it") {
  size_t deaths = 0, nameless = 0;
  for (;; ++deaths) {
    const bool died = dies_before_change(deaths, [&] { (void)Run(2).save(path + "/new"); });
    if (has_checkpoint(path + "/new")) {
      CHECK(loaded_step(path + "/new") == 2);
      nameless += fs::exists(path + "/new/latest") ? 0 : 1;
    }
    if (!died) break;
  }
  CHECK(deaths > 10);
  CHECK(nameless > 0);
}

TEST_CASE_METHOD(Place, "checkpoint: a save that dies at any byte of its files costs nothing") {
  save({4});
  Run next(6);
  std::set<std::string> last_files;  // in which file it died
  size_t bytes = 0;
  for (;; bytes += kSanitized ? 29 : 7) {
    if (!dies_at_file_size(bytes, [&] { (void)next.save(path); })) break;
    REQUIRE(loaded_step(path) == 4);
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string name = entry.path().filename();
      if (name.starts_with(".") && entry.is_regular_file()) {
        last_files.insert(name.substr(0, name.find(".tmp")));
      }
    }
  }
  CHECK(last_files == Names{".model.safetensors", ".optimizer.safetensors", ".state.json"});
  CHECK(loaded_step(path) == 6);
  CHECK(names_in(path) == Names{"latest", "step-00000004", "step-00000006"});
}

TEST_CASE_METHOD(Place, "checkpoint: a disk that is full is an error that leaves no trace") {
  save({4});
  for (const size_t bytes : {0, 100, 300, 500}) {
    check_on_full_disk(bytes, [&] { return Run(6).save(path).code() == Code::kSystem; });
    CHECK(names_in(path) == Names{"latest", "step-00000004"});
    CHECK(loaded_step(path) == 4);
  }
}

TEST_CASE_METHOD(Place, "checkpoint: the disk has each thing before something names it") {
  save({2, 4});
  const auto seen = operations_of([&] { REQUIRE(Run(6).save(path).ok()); });
  std::set<std::string> unsynced;  // files written, and folders in which names have changed
  const auto parent = [](const std::string& of) { return fs::path(of).parent_path().string(); };
  bool latest_named = false;
  for (const auto& [operation, changed] : seen) {
    INFO(operation << " " << changed);
    if (operation == "create" || operation == "write") unsynced.insert(changed);
    if (operation == "sync") unsynced.erase(changed);
    // Within the new folder its files are renamed before its own names are safe.
    const bool inside = parent(changed) != path;
    if (operation == "rename") {
      REQUIRE((inside || unsynced.empty()));
      unsynced.insert(parent(changed));
    }
    if (changed == path + "/latest") latest_named = true;
    if (operation == "remove") REQUIRE((latest_named && unsynced.empty()));
  }
  CHECK(latest_named);
}

TEST_CASE_METHOD(Place, "checkpoint: damage is named, with the newest that is intact") {
  save({10, 12});
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/state.json"}) {
    const std::string file = path + kFolderOf12 + name;
    const std::string whole = read_text(file);
    const auto check_refused = [&](bool names_the_file) {
      const std::string message = refusal(path);
      INFO(message);
      if (names_the_file) CHECK_THAT(message, contains(file));
      CHECK_THAT(message, contains(path + kFolderOf12));
      CHECK_THAT(message, contains("newest intact checkpoint is '" + path + "/step-00000010'"));
    };
    for (size_t bytes = 0; bytes < whole.size(); bytes += 3) {
      if (whole.substr(bytes) == "\n") continue;
      write_file(file, whole.substr(0, bytes));
      check_refused(whole.size() - bytes > 1);
    }
    for (size_t byte = 0; byte < whole.size(); ++byte) {
      std::string flipped = whole;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << byte % 8));
      write_file(file, flipped);
      check_refused(false);
    }
    fs::remove(file);
    check_refused(true);
    write_file(file, whole);
    CHECK(loaded_step(path) == 12);
  }
}

TEST_CASE_METHOD(Place, "checkpoint: files of two checkpoints are not taken together") {
  save({10, 12});
  const std::string model = path + kFolderOf12 + "/model.safetensors";
  write_file(model, read_text(path + "/step-00000010/model.safetensors"));
  CHECK_THAT(refusal(path), contains("'" + model + "' does not belong to the state.json"));
  // Nor one that says nothing of itself.
  REQUIRE(write_tensor_file(model, Run(12).model, {}).ok());
  CHECK_THAT(refusal(path), contains("'" + model + "' does not belong to the state.json"));
}

TEST_CASE_METHOD(Place,
                 "checkpoint: a `latest` that leads nowhere is an error, not another checkpoint") {
  CHECK_THAT(refusal(path), contains("No checkpoint in '" + path + "' is intact"));
  CHECK_THAT(refusal(path + "/missing"), contains("No such file"));
  save({10, 12});
  const std::string latest = path + "/latest";
  const char* const bad[] = {"",      "\n",        "../elsewhere",    "step-12",
                             "/etc/", "step-13\n", "step-00000012/.", "step--0000012"};
  for (const char* content : bad) {
    write_file(latest, content);
    const std::string message = refusal(path);
    INFO(message);
    CHECK_THAT(message, contains("'" + latest + "' holds '"));
    CHECK_THAT(message, contains("newest intact checkpoint is '" + path + kFolderOf12));
  }
  write_file(latest, "step-00000013\n");
  CHECK_THAT(refusal(path), contains("step-00000013/state.json' cannot be opened"));
  fs::remove(latest);
  CHECK(has_checkpoint(path));  // nobody starts anew here, and removes what is old
  CHECK_THAT(refusal(path), contains(latest + "' cannot be opened"));
  CHECK_THAT(refusal(path), contains("write step-00000012 into '" + latest));
  fs::create_directory(latest);
  CHECK_THAT(refusal(path), contains(latest + "' cannot be read"));
  fs::remove(latest);
  write_file(latest, "step-00000010");  // by hand, as the message says
  CHECK(loaded_step(path) == 10);
}

TEST_CASE_METHOD(Place, "checkpoint: a state that could not be loaded is not saved") {
  Run run(12);
  run.state.schedule.base_rate = std::numeric_limits<double>::quiet_NaN();
  CHECK(run.save(path).code() == Code::kInvalidArgument);
  run.state = Run(12).state;
  run.state.extra["text"] = "\xff";
  CHECK(run.save(path).code() == Code::kInvalidArgument);
  CHECK(names_in(path).empty());
}

TEST_CASE("checkpoint: state.json, entry by entry") {
  const nlohmann::ordered_json good = to_json(Run(12).state);
  REQUIRE(parse_checkpoint_state(good.dump()).ok());
  const auto message_of = [](const nlohmann::ordered_json& json) {
    const Result<CheckpointState> state = parse_checkpoint_state(json.dump());
    REQUIRE_FALSE(state.ok());
    CHECK(state.status().code() == Code::kDataError);
    return state.status().message();
  };
  for (const auto& [key, value] : good.items()) {
    INFO(key);
    nlohmann::ordered_json changed = good;
    changed.erase(key);
    CHECK_THAT(message_of(changed), contains("'" + key + "'"));
    changed = good;
    changed[key] = true;
    CHECK_THAT(message_of(changed), contains(key));
    if (!value.is_object() || key == "options" || key == "extra") continue;
    for (const auto& [inner, ignored] : value.items()) {
      changed = good;
      changed[key].erase(inner);
      CHECK_THAT(message_of(changed), contains("'" + key + "." + inner + "' is missing"));
      changed[key][inner] = nullptr;
      CHECK_THAT(message_of(changed), contains("'" + key + "." + inner + "' is no"));
    }
  }
  const auto refused = [&](const char* path, const nlohmann::ordered_json& value,
                           const std::string& part) {
    nlohmann::ordered_json changed = good;
    changed[nlohmann::ordered_json::json_pointer(path)] = value;
    CHECK_THAT(message_of(changed), contains(part));
  };
  refused("/step", -1, "'step' is no whole number");
  refused("/version", 2, "'version' is 2");
  refused("/schedule/decay", "stepwise", "'schedule.decay' is 'stepwise'");
  refused("/scaler/scale", 1e300, "'scaler.scale' is too large");
  refused("/buckets/1/pieces/0/2", 6, "'layout_hash'");
  refused("/buckets/1/pieces/0", {"w", 7}, "'buckets[1].pieces'");
  CHECK_THAT(message_of("text"), contains("it is no JSON object"));
}

TEST_CASE("checkpoint: the layout's hash tells layouts apart") {
  const std::vector<CheckpointBucket> layout = Run(12).state.buckets;
  std::set<uint64_t> hashes = {layout_hash(layout), layout_hash({})};
  const auto with = [&](auto change) {
    std::vector<CheckpointBucket> changed = layout;
    change(changed);
    return layout_hash(changed);
  };
  hashes.insert(with([](auto& b) { b[0].pieces[0].tensor = std::string("c"); }));
  hashes.insert(with([](auto& b) { b[0].pieces[1].first = 1; }));
  hashes.insert(with([](auto& b) { b[0].pieces[1].count = 8; }));
  hashes.insert(with([](auto& b) { std::swap(b[0], b[1]); }));
  hashes.insert(with([](auto& b) { std::swap(b[0].pieces[0], b[0].pieces[1]); }));
  hashes.insert(with([](auto& b) {  // the same pieces in the same order, cut elsewhere
    b[1].pieces.insert(b[1].pieces.begin(), b[0].pieces[1]);
    b[0].pieces.pop_back();
  }));
  CHECK(hashes.size() == 8);
  CHECK(with([](auto& b) { b[0].algorithm = "tree"; }) == layout_hash(layout));
}
