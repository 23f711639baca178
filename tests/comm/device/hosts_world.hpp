// Communicators on GPUs of several hosts, which are pretended, for tests, and an all-reduce of integers.
#pragma once

#include <memory>
#include <vector>

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {

/// Two GPUs.
inline std::shared_ptr<FakeGpu> gpus() { return std::make_shared<FakeGpu>(2); }

inline Status sum(World& world, int rank, std::vector<int32_t>& data, CallOptions options) {
  return world[rank].all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                                ReduceOp::kSum, options);
}
inline Status sum(World& world, int rank, std::vector<int32_t>& data) {
  return sum(world, rank, data, world.on_stream(rank));
}

inline void check_all_ok(World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    INFO("rank " << rank << ": " << world[rank].status().to_string());
    CHECK(world[rank].status().ok());
  }
}

}  // namespace rondo::device::test
