// Communicators on GPUs, over the fake of tests/comm/device. Windows: ranks that count as processes
// of their own reach each other's buffers in place once every rank has registered its own, and not
// before or after. Groups over several communicators; abort; how many communicators fit a GPU.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "nccl/abi.h"
#include "tests/comm/device/registered_memory.hpp"

namespace rondo::device::test {
namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = size_t{1} << 16, kBytes = kCount * sizeof(int32_t);

/// Ranks with a buffer each. They leave nothing behind on the GPU.
struct WindowedRanks {
  const std::shared_ptr<FakeGpu> gpu = make_gpu();
  const Installed installed{gpu};
  ncclComm_t comms[kRanks] = {};
  std::byte* memory[kRanks] = {};
  Stream streams[kRanks] = {};
  ncclWindow_t windows[kRanks] = {};

  WindowedRanks() {
    const int devices[kRanks] = {0, 1};
    REQUIRE(ncclCommInitAll(comms, kRanks, devices) == ncclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      auto made = device_alloc(kBytes, r);
      REQUIRE(made.ok());
      memory[r] = static_cast<std::byte*>(*made);
      streams[r] = *gpu->create_stream();
    }
  }
  ~WindowedRanks() {
    for (int r = 0; r < kRanks; ++r) {
      CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
      CHECK(device_free(memory[r]).ok());
      CHECK(gpu->destroy_stream(streams[r]).ok());
    }
    CHECK(gpu->alive() == 0);
  }

  /// Calls on every rank at the same time.
  void on_every_rank(const std::function<ncclResult_t(int)>& call) {
    ncclResult_t results[kRanks] = {};
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] { results[r] = call(r); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const ncclResult_t result : results) {
      INFO(ncclGetLastError(nullptr));
      REQUIRE(result == ncclSuccess);
    }
  }

  /// On how many ranks kernels have told their peers where the buffer is.
  int sum() {
    gpu->forget_told();
    for (int r = 0; r < kRanks; ++r) {
      const std::vector<int32_t> values(kCount, r + 1);
      std::memcpy(memory[r], values.data(), kBytes);
    }
    on_every_rank([&](int r) {
      return ncclAllReduce(memory[r], memory[r], kCount, ncclInt32, ncclSum, comms[r], streams[r]);
    });
    int told = 0;
    for (int r = 0; r < kRanks; ++r) {
      gpu->drain(streams[r]);
      std::vector<int32_t> found(kCount);
      std::memcpy(found.data(), memory[r], kBytes);
      CHECK((found == std::vector<int32_t>(kCount, 3)));
      ncclResult_t error = ncclInternalError;
      CHECK(ncclCommGetAsyncError(comms[r], &error) == ncclSuccess);
      CHECK(error == ncclSuccess);
      told += static_cast<int>(gpu->told().count(memory[r]));
    }
    return told;
  }

  /// Windows of these buffers, on every rank at the same time.
  void register_windows(void* const (&buffers)[kRanks]) {
    on_every_rank([&](int r) {
      return ncclCommWindowRegister(comms[r], buffers[r], kBytes, &windows[r], 0);
    });
  }
  void register_windows() { register_windows({memory[0], memory[1]}); }
};

TEST_CASE("A window on GPUs is read in place by ranks of other processes, while it is registered") {
  WindowedRanks ranks;
  CHECK(ranks.sum() == 0);
  ranks.register_windows();
  CHECK(ranks.sum() == kRanks);
  for (int r = 0; r < kRanks; ++r) {
    void* buffer = nullptr;
    CHECK(ncclWinGetUserPtr(ranks.comms[r], ranks.windows[r], &buffer) == ncclSuccess);
    CHECK(buffer == ranks.memory[r]);
  }
  ranks.on_every_rank(
      [&](int r) { return ncclCommWindowDeregister(ranks.comms[r], ranks.windows[r]); });
  CHECK(ranks.sum() == 0);
  // One rank at a time, which therefore cannot be for kernels of others.
  for (int r = 0; r < kRanks; ++r) {
    void* handle = nullptr;
    REQUIRE(ncclCommRegister(ranks.comms[r], ranks.memory[r], kBytes, &handle) == ncclSuccess);
    CHECK(ranks.sum() == 0);
    REQUIRE(ncclCommDeregister(ranks.comms[r], handle) == ncclSuccess);
    CHECK(ncclCommDeregister(ranks.comms[r], handle) == ncclInvalidArgument);
  }
}

TEST_CASE("A window of memory that one rank has on no GPU goes through slots on all ranks") {
  WindowedRanks ranks;
  std::vector<std::byte> on_host(kBytes);
  ranks.register_windows({ranks.memory[0], on_host.data()});
  CHECK(ranks.sum() == 0);
  for (int r = 0; r < kRanks; ++r) {
    CHECK(ncclCommWindowDeregister(ranks.comms[r], ranks.windows[r]) == ncclSuccess);
  }
}

TEST_CASE("A window on GPUs can be given up after ncclCommFinalize") {
  WindowedRanks ranks;
  ranks.register_windows();
  CHECK(ranks.sum() == kRanks);
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(ncclCommFinalize(ranks.comms[r]) == ncclSuccess);
    CHECK(ncclCommWindowDeregister(ranks.comms[r], ranks.windows[r]) == ncclSuccess);
    CHECK(ncclCommWindowDeregister(ranks.comms[r], ranks.windows[r]) == ncclInvalidArgument);
  }
}

TEST_CASE("ncclCommAbort on GPUs is local to a rank whose kernels have ended") {
  WindowedRanks ranks;
  CHECK(ranks.sum() == 0);
  const auto error_of_rank_1 = [&] {
    ncclResult_t error = ncclInternalError;
    CHECK(ncclCommGetAsyncError(ranks.comms[1], &error) == ncclSuccess);
    return error;
  };
  const auto call = [&](int r) {
    return ncclAllReduce(ranks.memory[r], ranks.memory[r], kCount, ncclInt32, ncclSum,
                         ranks.comms[r], ranks.streams[r]);
  };
  bool had_left = true;
  SECTION("they have") {
    REQUIRE(ncclCommAbort(ranks.comms[0]) == ncclSuccess);
    CHECK(error_of_rank_1() == ncclSuccess);
    REQUIRE(call(1) == ncclSuccess);  // for which it needs rank 0
  }
  SECTION("one waits for rank 1") {
    REQUIRE(call(0) == ncclSuccess);
    REQUIRE(ncclCommAbort(ranks.comms[0]) == ncclSuccess);
    had_left = false;
  }
  ranks.comms[0] = nullptr;
  ncclResult_t error = ncclSuccess;
  while ((error = error_of_rank_1()) == ncclSuccess) std::this_thread::yield();
  CHECK(error == ncclRemoteError);
  const std::string_view said = ncclGetLastError(ranks.comms[1]);
  CHECK(said.find("rank 0") != std::string_view::npos);
  CHECK((said.find("called ncclCommAbort") == std::string_view::npos) == had_left);
}

ncclResult_t create_alone(ncclComm_t* comm, int most_ctas) {
  ncclConfig_t config{};
  config.size = sizeof config;
  config.magic = kNcclMagic;
  config.version = 22703;
  config.blocking = config.cgaClusterSize = config.minCTAs = NCCL_CONFIG_UNDEF_INT;
  config.splitShare = config.shrinkShare = NCCL_CONFIG_UNDEF_INT;
  config.maxCTAs = most_ctas;
  ncclUniqueId id;
  const ncclResult_t drawn = ncclGetUniqueId(&id);
  return drawn == ncclSuccess ? ncclCommInitRankConfig(comm, 1, id, 0, &config) : drawn;
}

// As many as docs/nccl.md says of a GPU with 132 multiprocessors.
TEST_CASE("A communicator for which a GPU has no places left is refused, until one is destroyed") {
  const auto gpu = std::make_shared<FakeGpu>(1, 132);
  for (const auto& [most_ctas, expected] :
       {std::pair<int, size_t>{NCCL_CONFIG_UNDEF_INT, 20}, {4, 39}, {1000, 18}}) {
    const Installed installed(gpu);
    std::vector<ncclComm_t> comms;
    ncclComm_t made = nullptr;
    ncclResult_t result = ncclSuccess;
    while ((result = create_alone(&made, most_ctas)) == ncclSuccess) comms.push_back(made);
    CHECK(result == ncclInvalidUsage);
    INFO("maxCTAs " << most_ctas);
    CHECK(comms.size() == expected);
    CHECK(std::string_view(ncclGetLastError(nullptr)).find("Destroy a communicator first") !=
          std::string_view::npos);
    CHECK(ncclCommDestroy(comms.back()) == ncclSuccess);
    CHECK(create_alone(&comms.back(), most_ctas) == ncclSuccess);
    for (const ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  }
  CHECK(gpu->alive() == 0);
}

// Ranks create their communicators at different addresses, and have to agree about the order.
TEST_CASE("A group over several communicators is enqueued in the order of their first calls") {
  const auto gpu = make_gpu();
  {
    const Installed installed(gpu);
    ncclComm_t comms[2] = {};
    const int device = 0;
    for (ncclComm_t& comm : comms) REQUIRE(ncclCommInitAll(&comm, 1, &device) == ncclSuccess);
    auto made = device_alloc(3 * sizeof(int32_t), device);
    REQUIRE(made.ok());
    auto* const memory = static_cast<int32_t*>(*made);
    const Stream stream = *gpu->create_stream();
    // The second reads what the first has written.
    for (const int first : {0, 1}) {
      const int32_t before[] = {7, 1, 2};
      std::memcpy(memory, before, sizeof before);
      REQUIRE(ncclGroupStart() == ncclSuccess);
      for (const int i : {0, 1}) {
        REQUIRE(ncclAllReduce(memory + i, memory + i + 1, 1, ncclInt32, ncclSum, comms[first ^ i],
                              stream) == ncclSuccess);
      }
      REQUIRE(ncclGroupEnd() == ncclSuccess);
      gpu->drain(stream);
      CHECK(memory[1] == 7);
      CHECK(memory[2] == 7);
    }
    for (const ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(device_free(memory).ok());
    CHECK(gpu->destroy_stream(stream).ok());
  }
  CHECK(gpu->alive() == 0);
}

}  // namespace
}  // namespace rondo::device::test
