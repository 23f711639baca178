// Checkpoints whose optimizer state is in shards: begun by one, written by each, committed by one;
// until then nothing has changed, at whatever moment it ends.
#include <numeric>
#include <set>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/crash.hpp"
#include "tests/trainer/files.hpp"
#include "trainer/checkpoint/checkpoint.hpp"

namespace rondo::trainer::checkpoint_shards_test {

using namespace rondo;
using namespace rondo::trainer::testing;
using rondo::testing::contains;
using rondo::testing::TempDirectory;

namespace {

constexpr uint64_t kShards = 3;

/// A run at a step: twelve parameters, four elements of state in each shard.
struct Run {
  CheckpointState state;
  std::vector<float> values;
  std::vector<TensorView> model;
  std::vector<std::vector<TensorView>> shards;

  explicit Run(uint64_t step) : values(12) {
    std::iota(values.begin(), values.end(), static_cast<float>(100 * step));
    state.step = step;
    state.ranks = kShards;
    model = {{.name = "w", .type = DataType::kFloat32, .shape = {12}, .data = values.data()}};
    for (uint64_t shard = 0; shard < kShards; ++shard) {
      shards.push_back({{.name = "mean.w@" + std::to_string(4 * shard),
                         .type = DataType::kFloat32,
                         .shape = {4},
                         .data = values.data() + 4 * shard}});
    }
  }
  Run(const Run&) = delete;

  Status save(const std::string& folder) const {
    const Result<PendingCheckpoint> pending = begin_checkpoint(folder, state, model, kShards);
    RONDO_TRY(pending.status());
    for (uint64_t shard = 0; shard < kShards; ++shard) {
      RONDO_TRY(write_shard(pending.value(), shard, shards[shard]));
    }
    return commit_checkpoint(pending.value());
  }
};

/// The step that is loaded, all shards of which must be what Run(step) saved.
uint64_t loaded_step(const std::string& folder) {
  const Result<LoadedCheckpoint> loaded = load_checkpoint(folder);
  INFO(loaded.status().to_string());
  REQUIRE(loaded.ok());
  const Run expected(loaded.value().state.step);
  REQUIRE(loaded.value().optimizer.size() == kShards);
  for (uint64_t shard = 0; shard < kShards; ++shard) {
    const TensorView& view = expected.shards[shard][0];
    const TensorView* found = loaded.value().optimizer[shard].find(view.name);
    REQUIRE(found != nullptr);
    REQUIRE(std::memcmp(found->data, view.data, view.bytes()) == 0);
  }
  return loaded.value().state.step;
}

/// A checkpoint that another begins, of which these shards are written.
PendingCheckpoint begin_next(const std::string& folder, const Run& next,
                             const std::vector<uint64_t>& shards) {
  Result<PendingCheckpoint> pending = begin_checkpoint(folder, next.state, next.model, kShards);
  REQUIRE(pending.ok());
  for (const uint64_t shard : shards) {
    REQUIRE(write_shard(pending.value(), shard, next.shards[shard]).ok());
  }
  return std::move(pending).value();
}

}  // namespace

TEST_CASE("checkpoint in shards: comes back, and older ones go") {
  const TempDirectory folder;
  for (const uint64_t step : {2, 3, 5}) {
    REQUIRE(Run(step).save(folder.path()).ok());
    CHECK(loaded_step(folder.path()) == step);
  }
  CHECK(names_in(folder.path()) ==
        std::set<std::string>{"latest", "step-00000003", "step-00000005"});
}

TEST_CASE("checkpoint in shards: a save that dies before any change to the disk costs nothing") {
  const TempDirectory folder;
  REQUIRE(Run(4).save(folder.path()).ok());
  const Run next(6);
  size_t deaths = 0;
  bool new_seen = false;
  while (dies_before_change(deaths, [&] { (void)next.save(folder.path()); })) {
    ++deaths;
    const uint64_t step = loaded_step(folder.path());
    REQUIRE((step == 4 || step == 6));
    new_seen = new_seen || step == 6;
    REQUIRE((!new_seen || step == 6));  // it never goes back
  }
  CHECK(deaths > 20);
  CHECK(loaded_step(folder.path()) == 6);
}

TEST_CASE("checkpoint in shards: what is abandoned leaves nothing and changes nothing") {
  const TempDirectory folder;
  REQUIRE(Run(4).save(folder.path()).ok());
  const Run next(6);
  const PendingCheckpoint pending = begin_next(folder.path(), next, {1});
  CHECK(loaded_step(folder.path()) == 4);
  REQUIRE(abandon_checkpoint(pending).ok());
  CHECK(loaded_step(folder.path()) == 4);
  CHECK(names_in(folder.path()) == std::set<std::string>{"latest", "step-00000004"});
  // Also what another rank sees that has another disk.
  const Status elsewhere = write_shard(pending, 2, next.shards[2]);
  CHECK_THAT(elsewhere.message(), contains("all must see it"));
}

TEST_CASE("checkpoint in shards: one that was not written makes it no checkpoint") {
  const TempDirectory folder;
  REQUIRE(Run(4).save(folder.path()).ok());
  const Run next(6);
  REQUIRE(commit_checkpoint(begin_next(folder.path(), next, {0, 2})).ok());
  const Status status = load_checkpoint(folder.path()).status();
  CHECK_THAT(status.message(), contains("optimizer-1.safetensors"));
  CHECK_THAT(status.message(), contains("step-00000004"));
}

TEST_CASE("checkpoint in shards: a number of shards that is none is refused") {
  const TempDirectory folder;
  Run run(4);
  run.state.extra = {{"optimizer_shards", "three"}};
  REQUIRE(save_checkpoint(folder.path(), run.state, run.model, run.shards[0]).ok());
  const Status status = load_checkpoint(folder.path()).status();
  CHECK_THAT(status.message(), contains("optimizer_shards"));
}

}  // namespace rondo::trainer::checkpoint_shards_test
