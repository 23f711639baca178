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
  Rig world(2, processes());
  for (int late = 0; late < 2; ++late) {
    Slabs first(world, *world.gpu), second(world, *world.gpu);
    require_registered(world, first);
    must(world[1 - late].unregister_device_memory(first.begin(1 - late)));
    require_registered(world, second);
    world.gpu->forget_told();
    compare(world, second, {chosen_direct(world)});
    CHECK(was_told(*world.gpu, second.begin(0)));
    require_unregistered(world, second);
    must(world[late].unregister_device_memory(first.begin(late)));
  }
}

TEST_CASE("After the end of a registration operations go through slots, until there is another") {
  RegisteredRig world(2);
  const size_t imported = world.gpu->imported();
  const Call call = chosen_direct(world);
  CHECK(goes_directly(world, call));
  require_unregistered(world, world.slabs);
  CHECK(world.gpu->imported() == imported - 2);
  CHECK_FALSE(goes_directly(world, call));
  require_registered(world, world.slabs);
  CHECK(goes_directly(world, call));
}

TEST_CASE("A registration that kernels use ends when they have ended, and nobody waits for it") {
  RegisteredRig world(2);
  const size_t imported = world.gpu->imported();
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 2);
  AllPlaced found = place(world.slabs, {call}, 2);
  world.gpu->hold(world.stream(0));
  issue_all(world, {call}, found);
  require_unregistered(world, world.slabs);
  check_all_ok(world);
  CHECK(world.gpu->imported() == imported);
  world.gpu->let_go(world.stream(0));
  check_all(world, {call}, found, wanted);  // which calls status()
  CHECK(was_told(*world.gpu, found[0][0].in()));
  CHECK(world.gpu->imported() == imported - 2);
}

TEST_CASE("No call waits while status() in another thread ends a registration") {
  std::atomic<bool> holds{false}, is_held{false};
  RegisteredRig world(2);
  Slabs others(world, *world.gpu);
  require_registered(world, others);
  world.gpu->before_copy = [&](const std::byte*, const std::byte*) {
    if (!holds) return;
    is_held = true;
    holds.wait(true);
  };
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 2);
  AllPlaced found = place(world.slabs, {call}, 2), after = place(others, {call}, 2);
  const size_t imported = world.gpu->imported();
  world.gpu->hold(world.stream(0));
  issue_all(world, {call}, found);
  require_unregistered(world, world.slabs);
  world.gpu->let_go(world.stream(0));
  world.synchronize();
  holds = true;  // copies to the table
  Status seen;
  std::thread looks([&] { seen = world[0].status(); });
  testing::await("the table is being written", [&] { return is_held.load(); });
  issue_all(world, {call}, after);
  holds = false;
  holds.notify_all();
  looks.join();
  must(seen);
  CHECK(world.gpu->imported() ==
        imported - 1);  // the copy did not take the ten seconds that it may
  check_all(world, {call}, after, wanted);
}

TEST_CASE(
    "Memory that was freed and allocated again at its address is usable once it is registered") {
  RegisteredRig world(2);
  const Call call = chosen_direct(world);
  CHECK(goes_directly(world, call));
  world.slabs.renew();
  require_registered(world, world.slabs);
  CHECK(goes_directly(world, call));
}

TEST_CASE(
    "Memory at its address of before is registered when kernels have let go of what was there") {
  RegisteredRig world(2);
  world.gpu->keeps_places = true;
  const Call call = chosen_direct(world);
  AllPlaced found = place(world.slabs, {call}, 2);
  world.gpu->hold(world.stream(0));
  issue_all(world, {call}, found);
  require_unregistered(world, world.slabs);
  world.slabs.renew();
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.gpu->let_go(world.stream(0));
  });
  const auto statuses = register_all(world, world.slabs);
  ends.join();
  for (const Status& status : statuses) must(status);
  CHECK(goes_directly(world, call));
}

TEST_CASE("Memory that was freed before it was unregistered is not registered again, but is used") {
  RegisteredRig world(2);
  world.gpu->keeps_places = true;
  world.slabs.renew();
  for (const Status& status : register_all(world, world.slabs)) {
    check_failed(status, Code::kUnavailable, {"go through slots"});
  }
  require_unregistered(world, world.slabs);
  compare(world, world.slabs, {chosen_direct(world)});
  require_registered(world, world.slabs);
  compare(world, world.slabs, {chosen_direct(world)});
}

TEST_CASE("Using a registration that has ended on another rank is a mismatch") {
  RegisteredRig world(2);
  Slabs second(world, *world.gpu);
  require_registered(world, second);
  const Call call = chosen_direct(world);
  must(world[0].unregister_device_memory(world.slabs.begin(0)));
  AllPlaced found(1);
  found[0].emplace_back(call, 0, 2, second.begin(0));
  found[0].emplace_back(call, 1, 2, world.slabs.begin(1));
  issue_all(world, {call}, found);
  world.synchronize();
  check_all_failed(world, Code::kMismatch,
                   {"rank 1 uses a registration there that has ended on rank 0"});
  must(world[1].unregister_device_memory(world.slabs.begin(1)));
  require_unregistered(world, second);
}

TEST_CASE("More registrations than there are places are refused on every rank alike") {
  SlabRig world(2);
  constexpr uint32_t kMost = transport::cuda_ipc::kMostRegistrations;
  for (const Status& status : on_all(world, [&](int rank) {
         for (uint32_t i = 0; i < kMost; ++i) {
           RONDO_TRY(world[rank].register_device_memory(world.slabs.begin(rank) + i, 100));
         }
         return Status();
       })) {
    must(status);
  }
  for (const Status& status : register_all(world, world.slabs)) {
    check_failed(status, Code::kResourceExhausted, {"256 registrations"});
  }
  for (int rank = 0; rank < 2; ++rank) {
    must(world[rank].unregister_device_memory(world.slabs.begin(rank) + 9));
  }
  require_registered(world, world.slabs);
  compare(world, world.slabs, {forced_direct()});
  for (int rank = 0; rank < 2; ++rank) {
    for (uint32_t i = 1; i < kMost; ++i) {
      CHECK(world[rank].unregister_device_memory(world.slabs.begin(rank) + i).ok() == (i != 9));
    }
  }
}

}  // namespace
}  // namespace rondo::device::test
