// _v collectives of a communicator on a device, against those of the host.
#include <string>
#include <vector>

#include "tests/comm/device/varying_calls.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("On a device, _v collectives give what they give on the host") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      const auto calls = varying_calls(size);
      const auto ranks = static_cast<size_t>(size);
      std::vector<std::vector<int32_t>> wanted(ranks * calls.size(), std::vector<int32_t>(kRoom));
      auto found = wanted;
      const auto at = [&](size_t call, int rank) {
        return call * ranks + static_cast<size_t>(rank);
      };
      testing::require_all_ok(
          testing::run_world(testing::How::kThreads, size, [&](Communicator& c) {
            const std::vector<int32_t> in = filled(c.rank());
            for (size_t i = 0; i < calls.size(); ++i) {
              testing::expect_ok(calls[i](c, in.data(), wanted[at(i, c.rank())].data(), {}), "_v");
            }
          }));
      const auto gpu = std::make_shared<FakeGpu>(2);
      // Programs of calls that never come again have to make room for each other.
      const Installed installed(gpu, 16 << 10);
      World world(gpu, size);
      REQUIRE(world.all_created());
      std::vector<std::vector<int32_t>> in;
      for (int rank = 0; rank < size; ++rank) in.push_back(filled(rank));
      for (int again = 0; again < 20; ++again) {
        for (size_t i = 0; i < calls.size(); ++i) {
          for (int rank = 0; rank < size; ++rank) {
            const Status status = calls[i](world[rank], in[static_cast<size_t>(rank)].data(),
                                           found[at(i, rank)].data(), world.on_stream(rank));
            INFO(i << ": " << status.to_string());
            REQUIRE(status.ok());
          }
          world.synchronize();
        }
      }
      for (int rank = 0; rank < size; ++rank) {
        INFO(world[rank].status().to_string());
        CHECK(world[rank].status().ok());
      }
      CHECK(found == wanted);
    }
  }
}

TEST_CASE("Groups whose programs no longer fit wait before they begin, not in the middle") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu, 16 << 10);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  const auto calls = varying_calls(2);
  std::vector<std::vector<int32_t>> in = {filled(0), filled(1)};
  std::vector<std::vector<int32_t>> out(2 * calls.size(), std::vector<int32_t>(kRoom));
  std::vector<int32_t> letters(4);
  for (int again = 0; again < 50; ++again) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const CallOptions options = world.on_stream(rank);
      Communicator& c = world[rank];
      REQUIRE(c.group_start().ok());
      REQUIRE(c.send(&letters[r], 1, DataType::kInt32, 1 - rank, options).ok());
      REQUIRE(c.recv(&letters[2 + r], 1, DataType::kInt32, 1 - rank, options).ok());
      for (size_t i = 0; i < calls.size(); ++i) {
        REQUIRE(calls[i](c, in[r].data(), out[2 * i + r].data(), options).ok());
      }
      const Status status = c.group_end();
      INFO(again << ", rank " << rank << ": " << status.to_string());
      REQUIRE(status.ok());
    }
  }
  world.synchronize();
  for (int rank = 0; rank < 2; ++rank) CHECK(world[rank].status().ok());
}

TEST_CASE("An all_to_all_v of GPUs whose counts differ is told with both") {
  // Rank 0 sends too many; or nothing, where rank 1 waits.
  for (const size_t sent : {size_t{70}, size_t{0}}) {
    const size_t expected = 60;
    const auto gpu = std::make_shared<FakeGpu>();
    if (sent == 0) gpu->ns_per_look = 1'000'000'000;
    const Installed installed(gpu);
    World world(gpu, 2);
    REQUIRE(world.all_created());
    std::vector<int32_t> in(200), out(400);
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<size_t> sends = {0, rank == 0 ? sent : 0};
      const std::vector<size_t> expects = {rank == 1 ? expected : 0, 0};
      REQUIRE(world[rank]
                  .all_to_all_v(in.data(), sends, {}, out.data() + 200 * rank, expects, {},
                                DataType::kInt32, world.on_stream(rank))
                  .ok());
    }
    world.synchronize();
    for (const int rank : {1, 0}) {  // which has noticed it, and who hears of it
      const Status status = world[rank].status();
      INFO(sent << " of " << expected << ": " << status.to_string());
      CHECK(status.code() == Code::kMismatch);
      CHECK(status.message().find("rank 0 sends " + std::to_string(sent) +
                                  " elements to rank 1, which expects " +
                                  std::to_string(expected)) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace rondo::device::test
