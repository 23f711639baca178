// Registered memory: ranks that are processes of their own, as far as the fake GPU can tell, access
// each other's buffers in place, at addresses that are not the owner's.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "tests/comm/device/registered_memory.hpp"
#include "tests/comm/device/varying_calls.hpp"

namespace rondo::device::test {
namespace {

std::vector<Call> every_direct_form(int size) {
  std::vector<Call> calls;
  for (const Algorithm algorithm : {Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
    for (Call call : every_collective(size)) {
      if (algorithms::find(call.collective, algorithm) == nullptr || call.count == 0) continue;
      if (call.in_place && !algorithms::is_in_place_safe(call.collective, algorithm)) continue;
      call.algorithm = algorithm;
      calls.push_back(call);
    }
  }
  return calls;
}

TEST_CASE("Between processes, every direct form gives the host's bits in registered memory") {
  for (const int size : testing::sizes({2, 3, 4})) {
    for (const int ranks_of_a_process : {1, 2}) {
      DYNAMIC_SECTION(size << " ranks, " << ranks_of_a_process << " to a process") {
        SlabRig world(size, {.gpu = make_gpu(ranks_of_a_process)});
        if (ranks_of_a_process < size) {
          int32_t* const memory = world.slabs.ints(0);
          check_failed(
              sum(world[0], memory, memory, 8, world.on_stream(0, Algorithm::kTwoShotDirect)),
              Code::kUnavailable, {"unless memory has been registered"});
        }
        require_registered(world, world.slabs);
        compare(world, world.slabs, every_direct_form(size));
        Call scaled = forced_direct(333);
        scaled.type = DataType::kFloat32;
        scaled.op = ReduceOp::kMulSum;
        compare(world, world.slabs, {scaled});
        CHECK_FALSE(world.gpu->told().empty());
      }
    }
  }
}

TEST_CASE(
    "Between processes, _v collectives in registered memory give what they give on the host") {
  for (const int size : testing::sizes({2, 3, 4})) {
    DYNAMIC_SECTION(size << " ranks") {
      const auto calls = varying_calls(size);
      const VaryingResults wanted = varying_on_host(size);
      RegisteredRig world(size, {.gpu = make_gpu()});
      const auto take = [&](int rank, const Ints& values) {
        auto* const at =
            reinterpret_cast<int32_t*>(world.slabs.take(rank, kRoom * sizeof(int32_t)));
        std::ranges::copy(values, at);
        return at;
      };
      int direct = 0;
      for (const Algorithm algorithm :
           {Algorithm::kAuto, Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
        for (size_t i = 0; i < calls.size(); ++i) {
          const bool exists = algorithms::find(calls[i].collective, algorithm) != nullptr;
          if (algorithm != Algorithm::kAuto && !exists) continue;
          INFO(name(calls[i].collective) << " by " << name(algorithm));
          world.slabs.clear();
          world.gpu->forget_told();
          std::vector<int32_t*> in, out;
          for (int rank = 0; rank < size; ++rank) {
            in.push_back(take(rank, filled(rank)));
            out.push_back(take(rank, Ints(kRoom, -1)));
          }
          for (int rank = 0; rank < size; ++rank) {
            must(
                calls[i].issue(world[rank], in[rank], out[rank], world.on_stream(rank, algorithm)));
          }
          finish(world);
          for (int rank = 0; rank < size; ++rank) {
            direct += was_told(*world.gpu, in[rank]) || was_told(*world.gpu, out[rank]);
            CHECK(std::ranges::equal(wanted[i][rank], std::span(out[rank], kRoom)));
          }
        }
      }
      CHECK(direct > 0);
    }
  }
}

TEST_CASE("A peer's memory that is touched at its owner's address is noticed") {
  SlabRig world(2, processes(2));  // threads of one process, which may
  for (const uint32_t rank : {0U, 1U}) {
    world.gpu->belongs_to(rank, world.slabs.begin(static_cast<int>(rank)), kSlab);
  }
  compare(world, world.slabs, {forced_direct()});
  CHECK(world.gpu->trespasses.exchange(0) > 0);
}

TEST_CASE(
    "Between processes, an operation goes through slots if one rank's buffer is not registered") {
  RegisteredRig world(3);
  Slabs plain(world, *world.gpu);
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 3);
  for (int apart = 0; apart < 4; ++apart) {  // 3: none
    INFO("rank " << apart);
    world.gpu->forget_told();
    AllPlaced found(1);
    for (int rank = 0; rank < 3; ++rank) {
      const size_t bytes = wanted[0][0].memory().size();
      found[0].emplace_back(call, rank, 3, (rank == apart ? plain : world.slabs).take(rank, bytes));
    }
    issue_all(world, {call}, found);
    check_all(world, {call}, found, wanted);
    for (auto& each : found[0]) CHECK(was_told(*world.gpu, each.in()) == (apart == 3));
  }

  // One whose algorithm is forced cannot do without.
  check_failed(sum(world[1], plain.ints(1), plain.ints(1), 4096,
                   world.on_stream(1, Algorithm::kTwoShotDirect)),
               Code::kUnavailable, {"one of rank 1's is not in registered memory"});
}

TEST_CASE("A buffer that lies in registered memory only in part is not registered") {
  SlabRig world(2);
  require_registered(world, world.slabs, kSlab / 2);
  const Call call = chosen_direct(world);
  const auto is_told = [&](std::byte* of_rank_1) {
    AllPlaced found(1);
    found[0].emplace_back(call, 0, 2, world.slabs.begin(0));
    found[0].emplace_back(call, 1, 2, of_rank_1);
    world.gpu->forget_told();
    compare(world, {call}, found);
    return was_told(*world.gpu, found[0][0].in());
  };
  std::byte* const begin = world.slabs.begin(1);
  CHECK(is_told(begin));
  CHECK_FALSE(is_told(begin - 8));
  CHECK_FALSE(is_told(begin + kSlab / 2 - 8));
}

TEST_CASE("A registration that fails on one rank fails on all, and the communicator works on") {
  SlabRig world(3);
  std::vector<std::byte> host(100);
  std::byte* const own = world.slabs.begin(1);
  world.gpu->not_for_peers.insert(own + 64);
  struct Wrong {
    std::byte* memory;
    size_t bytes;
    Code code;
    const char* text;
  };
  const Wrong wrongs[] = {
      {host.data(), 100, Code::kInvalidArgument, "is not device memory"},
      {nullptr, 100, Code::kInvalidArgument, "are no memory"},
      {own, 0, Code::kInvalidArgument, "are no memory"},
      {world.slabs.begin(0), 100, Code::kInvalidArgument, "is on GPU 0, and this communicator's"},
      {own, kSlab + 1, Code::kInvalidArgument, "exceed their allocation"},
      {own + 64, 100, Code::kUnavailable, "comes from a pool (cudaMallocAsync)"}};
  for (const Wrong& wrong : wrongs) {
    for (const Status& status :
         register_all_but(1, wrong.memory, wrong.bytes, world, world.slabs)) {
      check_failed(status, wrong.code, {wrong.text});
      CHECK(status.message().starts_with("register_device_memory: rank 1: "));
      if (wrong.code == Code::kUnavailable) {
        CHECK(status.message().ends_with("can be registered"));  // nothing is cut off
      }
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    check_failed(world[rank].unregister_device_memory(world.slabs.begin(rank)),
                 Code::kInvalidArgument);
    CHECK_FALSE(is_direct(
        world[rank].plan(Collective::kAllReduce, 4096, DataType::kInt32, true).algorithm));
  }
  CHECK_FALSE(goes_directly(world, {.collective = Collective::kAllReduce, .count = 4096}));
  require_registered(world, world.slabs);
  CHECK(goes_directly(world, chosen_direct(world)));
}

TEST_CASE("A graph's operations are direct at every replay while their memory is registered") {
  RegisteredRig world(3);
  const std::vector<Call> calls = {chosen_direct(world),
                                   {.collective = Collective::kAllGather, .count = 5},
                                   chosen_direct(world),
                                   forced_direct(700)};
  const auto wanted = on_host(calls, 3);
  AllPlaced found = place(world.slabs, calls, 3);
  auto graphs = capture_all(world, [&](int rank) { issue_on(world, rank, calls, found); });
  const auto is_direct_now = [&] {
    world.gpu->forget_told();
    put_all(found);
    replay_all(graphs);
    check_all(world, calls, found, wanted);
    return was_told(*world.gpu, found[2][1].in());
  };
  for (int i = 0; i < 3; ++i) CHECK(is_direct_now());
  // Another registration may have the place of the one that has ended.
  require_unregistered(world, world.slabs);
  CHECK_FALSE(is_direct_now());
  require_registered(world, world.slabs);
  CHECK_FALSE(is_direct_now());
  compare(world, world.slabs, {chosen_direct(world)});
}

TEST_CASE("Buffers of an operation may lie in several registrations, and in others on each rank") {
  RegisteredRig world(3);
  Slabs second(world, *world.gpu);
  require_registered(world, second);
  require_registered(world, world.slabs);  // twice
  for (const bool swapped : {false, true}) {
    const auto at = [&](int rank, bool other) {
      return ((rank == 1) != (swapped != other) ? second : world.slabs).ints(rank);
    };
    for (int rank = 0; rank < 3; ++rank) {
      std::iota(at(rank, false), at(rank, false) + 1000, 7 * rank);
      std::fill_n(at(rank, true), 1000, -1);
    }
    for (int rank = 0; rank < 3; ++rank) {
      must(sum(world[rank], at(rank, false), at(rank, true), 1000,
               world.on_stream(rank, Algorithm::kTwoShotDirect)));
    }
    finish(world);
    for (int rank = 0; rank < 3; ++rank) {
      bool right = true;
      for (int i = 0; i < 1000; ++i) right = right && at(rank, true)[i] == 3 * i + 21;
      CHECK(right);
    }
  }
  require_unregistered(world, world.slabs);
  require_unregistered(world, second);
  CHECK(goes_directly(world, chosen_direct(world)));  // still registered once
  require_unregistered(world, world.slabs);
}

TEST_CASE("Memory of device_alloc is freed once, and not while it is registered") {
  RegisteredRig world(2);
  CHECK(device_free(nullptr).ok());
  for (const int device : {2, -1}) {
    CHECK(device_alloc(100, device).status().code() == Code::kUnavailable);
  }
  void* const empty = device_alloc(0, 1).value();
  CHECK(empty != nullptr);
  check_failed(device_free(static_cast<std::byte*>(empty) + 1), Code::kInvalidArgument);
  must(device_free(empty));
  check_failed(device_free(empty), Code::kInvalidArgument);
  check_failed(device_free(world.slabs.begin(0) - kBefore), Code::kInvalidArgument,
               {"still registered"});
  // Not on a device, or in a group.
  int data = 0;
  run_on_host(1, [&](Communicator& host) {
    expect_failed(host.register_device_memory(&data, sizeof data), Code::kInvalidArgument);
    expect_failed(host.unregister_device_memory(&data), Code::kInvalidArgument);
  });
  must(world[0].group_start());
  check_failed(world[0].register_device_memory(&data, sizeof data), Code::kInvalidArgument);
  must(world[0].group_end());
}

TEST_CASE("Threads of one process register, too, and GPUs without access to each other refuse") {
  {
    SlabRig world(2, processes(2));
    const size_t alive = world.gpu->alive();
    require_registered(world, world.slabs);
    CHECK(world.gpu->alive() == alive);  // nothing to import
    compare(world, world.slabs, {chosen_direct(world)});
    require_unregistered(world, world.slabs);
    compare(world, world.slabs, {chosen_direct(world)});
  }
  const Setup apart = processes();
  apart.gpu->peers.clear();
  SlabRig world(2, apart);
  for (const Status& status : register_all(world, world.slabs)) {
    check_failed(status, Code::kUnavailable);
  }
  compare(world, world.slabs, {{.collective = Collective::kAllReduce, .count = 4096}});
}

TEST_CASE("Whichever call of CUDA fails while memory is registered, all ranks learn of it") {
  constexpr int kMany = 200'000;  // so many that the choice is a direct algorithm
  fail_each_call(30, [](Failing& failing) {
    SlabRig world(2);
    failing.begin(*world.gpu);
    const auto statuses = register_all(world, world.slabs);
    INFO(statuses[0].to_string() << "; " << statuses[1].to_string());
    CHECK(statuses[0].ok() == statuses[1].ok());
    failing.hear(statuses[0]);
    int32_t* const data[] = {world.slabs.ints(0), world.slabs.ints(1)};
    for (int rank = 0; rank < 2; ++rank) std::fill_n(data[rank], kMany, rank + 1);
    for (int rank = 0; rank < 2; ++rank) {
      failing.hear(sum(world[rank], data[rank], data[rank], kMany, world.on_stream(rank)));
    }
    world.synchronize();
    for (int rank = 0; rank < 2; ++rank) {
      failing.hear(world[rank].status());
      failing.right = failing.right && std::count(data[rank], data[rank] + kMany, 3) == kMany;
    }
    for (int rank = 0; rank < 2; ++rank) {
      (void)world[rank].unregister_device_memory(world.slabs.begin(rank));
      (void)world[rank].status();
    }
    failing.end(*world.gpu);
    if (failing.call < 0) CHECK(was_told(*world.gpu, data[0]));
    world.leave(0);
    world.leave(1);
  });
}

}  // namespace
}  // namespace rondo::device::test
