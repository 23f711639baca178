// _v collectives of a communicator on a device, against those of the host.
#include <string>
#include <vector>

#include "tests/comm/device/varying_calls.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("On a device, _v collectives give what they give on the host") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      // Programs of calls that never come again have to make room for each other.
      Rig world(size, {.gpu = gpus(), .program_bytes = 16 << 10});
      compare_varying(world, 20);
    }
  }
}

TEST_CASE("Groups whose programs no longer fit wait before they begin, not in the middle") {
  Rig world(2, {.program_bytes = 16 << 10});
  const auto calls = varying_calls(2);
  const Ints in[2] = {filled(0), filled(1)};
  VaryingResults out = varying_results(2);
  Ints letters(4);
  for (int turn = 0; turn < 50; ++turn) {
    for (int rank = 0; rank < 2; ++rank) {
      const CallOptions options = world.on_stream(rank);
      Communicator& c = world[rank];
      must(c.group_start());
      must(c.send(&letters[rank], 1, DataType::kInt32, 1 - rank, options));
      must(c.recv(&letters[2 + rank], 1, DataType::kInt32, 1 - rank, options));
      for (size_t i = 0; i < calls.size(); ++i) {
        must(calls[i].issue(c, in[rank].data(), out[i][rank].data(), options));
      }
      INFO(turn << ", rank " << rank);
      must(c.group_end());
    }
  }
  finish(world);
}

TEST_CASE("An all_to_all_v of GPUs whose counts differ is told with both") {
  // Rank 0 sends too many; or nothing, where rank 1 waits.
  for (const size_t sent : {size_t{70}, size_t{0}}) {
    const Setup setup;
    if (sent == 0) setup.gpu->ns_per_look = 1'000'000'000;
    Rig world(2, setup);
    Ints in(200), out(400);
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<size_t> sends = {0, rank == 0 ? sent : 0};
      const std::vector<size_t> expects = {rank == 1 ? size_t{60} : 0, 0};
      must(world[rank].all_to_all_v(in.data(), sends, {}, out.data() + 200 * rank, expects, {},
                                    DataType::kInt32, world.on_stream(rank)));
    }
    world.synchronize();
    check_all_failed(
        world, Code::kMismatch,
        {"rank 0 sends " + std::to_string(sent) + " elements to rank 1, which expects 60"});
  }
}

}  // namespace
}  // namespace rondo::device::test
