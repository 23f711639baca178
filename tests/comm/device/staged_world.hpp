// Communicators on GPUs of several hosts, which are pretended, for tests: gpus() through which they
// stage, and an all-reduce of integers.
#pragma once

#include <memory>
#include <vector>

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {

constexpr size_t kMuch = size_t{1} << 20, kLittle = 256;

/// Two GPUs, whose communicators stage through so much memory.
inline std::shared_ptr<FakeGpu> gpus(size_t staging_bytes = kMuch) {
  auto gpu = std::make_shared<FakeGpu>(2);
  gpu->staging_bytes = staging_bytes;
  return gpu;
}

/// Operations go over the links inside hosts whatever their size.
inline Config hierarchical() {
  Config config = small_config();
  config.algorithm = Algorithm::kHierarchical;
  return config;
}

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
