// The end of registrations of memory, also while kernels or other ranks use them, and what comes
// after it at the same place.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/registered_memory.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("A place in the table that one rank still uses is given out on no rank") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  for (int late = 0; late < 2; ++late) {
    Slabs first(world, *gpu), second(world, *gpu);
    require_registered(world, first);
    REQUIRE(world[1 - late].unregister_memory(first.begin(1 - late)).ok());
    require_registered(world, second);
    gpu->forget_told();
    compare(world, second, {chosen_direct(world)});
    CHECK(was_told(*gpu, second.begin(0)));
    require_unregistered(world, second);
    REQUIRE(world[late].unregister_memory(first.begin(late)).ok());
  }
  CHECK(gpu->trespasses == 0);
}

TEST_CASE("After the end of a registration operations go through slots, until there is another") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 2, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    require_registered(world, slabs);
    const size_t imported = gpu->imported();
    const Call call = chosen_direct(world);
    compare(world, slabs, {call});
    CHECK(was_told(*gpu, slabs.begin(0)));
    require_unregistered(world, slabs);
    CHECK(gpu->imported() == imported - 2);
    gpu->forget_told();
    compare(world, slabs, {call});
    CHECK_FALSE(was_told(*gpu, slabs.begin(0)));
    require_registered(world, slabs);
    gpu->forget_told();
    compare(world, slabs, {call});
    CHECK(was_told(*gpu, slabs.begin(0)));
    CHECK(gpu->trespasses == 0);
    require_unregistered(world, slabs);
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("A registration that kernels use ends when they have ended, and nobody waits for it") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  const size_t imported = gpu->imported();
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 2);
  AllPlaced found = place(slabs, {call}, 2);
  gpu->hold(world.stream(0));
  issue_all(world, {call}, found);
  require_unregistered(world, slabs);
  for (int rank = 0; rank < 2; ++rank) CHECK(world[rank].status().ok());
  CHECK(gpu->imported() == imported);
  gpu->let_go(world.stream(0));
  world.synchronize();
  check_all(world, {call}, found, wanted);  // which calls status()
  CHECK(was_told(*gpu, found[0][0].in()));
  CHECK(gpu->imported() == imported - 2);
}

TEST_CASE("No call waits while status() in another thread ends a registration") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  std::atomic<bool> holds{false}, is_held{false};
  gpu->before_copy = [&](const std::byte*, const std::byte*) {
    if (!holds) return;
    is_held = true;
    holds.wait(true);
  };
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu), others(world, *gpu);
  require_registered(world, slabs);
  require_registered(world, others);
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 2);
  AllPlaced found = place(slabs, {call}, 2), after = place(others, {call}, 2);
  const size_t imported = gpu->imported();
  gpu->hold(world.stream(0));
  issue_all(world, {call}, found);
  require_unregistered(world, slabs);
  gpu->let_go(world.stream(0));
  world.synchronize();
  holds = true;  // copies to the table
  Status seen;
  std::thread looks([&] { seen = world[0].status(); });
  testing::await("the table is being written", [&] { return is_held.load(); });
  issue_all(world, {call}, after);
  holds = false;
  holds.notify_all();
  looks.join();
  CHECK(seen.ok());
  CHECK(gpu->imported() == imported - 1);  // the copy did not take the ten seconds that it may
  world.synchronize();
  check_all(world, {call}, after, wanted);
}

TEST_CASE(
    "Memory that was freed and allocated again at its address is usable once it is registered") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 2, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    require_registered(world, slabs);
    const Call call = chosen_direct(world);
    compare(world, slabs, {call});
    for (int rank = 0; rank < 2; ++rank) gpu->renew(slabs.begin(rank) - kBefore);
    require_registered(world, slabs);
    gpu->forget_told();
    compare(world, slabs, {call});
    CHECK(was_told(*gpu, slabs.begin(0)));
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE(
    "Memory at its address of before is registered when kernels have let go of what was there") {
  const auto gpu = make_gpu();
  gpu->keeps_places = true;
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  const Call call = chosen_direct(world);
  AllPlaced found = place(slabs, {call}, 2);
  gpu->hold(world.stream(0));
  issue_all(world, {call}, found);
  require_unregistered(world, slabs);
  for (int rank = 0; rank < 2; ++rank) gpu->renew(slabs.begin(rank) - kBefore);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gpu->let_go(world.stream(0));
  });
  const auto statuses = on_all(
      world, [&](int rank) { return world[rank].register_memory(slabs.begin(rank), kSlab); });
  ends.join();
  for (const Status& status : statuses) CHECK(status.to_string() == Status().to_string());
  gpu->forget_told();
  compare(world, slabs, {call});
  CHECK(was_told(*gpu, slabs.begin(0)));
}

TEST_CASE("Memory that was freed before it was unregistered is not registered anew, but goes on") {
  const auto gpu = make_gpu();
  gpu->keeps_places = true;
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  for (int rank = 0; rank < 2; ++rank) gpu->renew(slabs.begin(rank) - kBefore);
  for (const Status& status : on_all(world, [&](int rank) {
         return world[rank].register_memory(slabs.begin(rank), kSlab);
       })) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().find("go through slots") != std::string::npos);
  }
  require_unregistered(world, slabs);
  compare(world, slabs, {chosen_direct(world)});
  require_registered(world, slabs);
  compare(world, slabs, {chosen_direct(world)});
}

TEST_CASE("Using a registration that has ended on another rank is a mismatch") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs first(world, *gpu), second(world, *gpu);
  require_registered(world, first);
  require_registered(world, second);
  const Call call = chosen_direct(world);
  REQUIRE(world[0].unregister_memory(first.begin(0)).ok());
  AllPlaced found(1);
  found[0].emplace_back(call, 0, 2, second.begin(0));
  found[0].emplace_back(call, 1, 2, first.begin(1));
  issue_all(world, {call}, found);
  world.synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = world[rank].status();
    INFO(status.to_string());
    CHECK(status.code() == Code::kMismatch);
    CHECK(status.message().find("rank 1 uses a registration there that has ended on rank 0") !=
          std::string::npos);
  }
  CHECK(gpu->trespasses == 0);
  REQUIRE(world[1].unregister_memory(first.begin(1)).ok());
  require_unregistered(world, second);
}

TEST_CASE("More registrations than there are places are refused on every rank alike") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  const auto statuses = on_all(world, [&](int rank) {
    for (uint32_t i = 0; i < transport::cuda_ipc::kMostRegistrations; ++i) {
      RONDO_TRY(world[rank].register_memory(slabs.begin(rank) + i, 100));
    }
    return Status();
  });
  for (const Status& status : statuses) REQUIRE(status.ok());
  const auto one_more = [&](int rank) {
    return world[rank].register_memory(slabs.begin(rank), kSlab);
  };
  for (const Status& status : on_all(world, one_more)) {
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(status.message().find("256 registrations") != std::string::npos);
  }
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(world[rank].unregister_memory(slabs.begin(rank) + 9).ok());
  }
  for (const Status& status : on_all(world, one_more)) CHECK(status.ok());
  compare(world, slabs,
          {{.collective = Collective::kAllReduce,
            .count = 1000,
            .algorithm = Algorithm::kTwoShotDirect}});
  CHECK(gpu->trespasses == 0);
  for (int rank = 0; rank < 2; ++rank) {
    for (uint32_t i = 1; i < transport::cuda_ipc::kMostRegistrations; ++i) {
      CHECK(world[rank].unregister_memory(slabs.begin(rank) + i).ok() == (i != 9));
    }
  }
}

}  // namespace
}  // namespace rondo::device::test
