// Processes that are ranks, each with a fake GPU of its own, for tests that fork.
#pragma once

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {

/// This process as a rank.
struct Alone {
  const std::shared_ptr<FakeGpu> gpu;
  const Installed installed{gpu};
  const Stream stream = *gpu->create_stream();
  std::optional<Communicator> ranks;

  Alone(std::shared_ptr<FakeGpu> own, const TempDirectory& directory, int rank, int size,
        const Config& config = small_config())
      : gpu(std::move(own)) {
    Config of_rank = config_of(directory, rank, size, config);
    of_rank.device = rank % static_cast<int>(gpu->devices.size());
    auto made = Communicator::create(of_rank);
    testing::expect_ok(made.status(), "create");
    ranks = std::move(*made);
  }
  ~Alone() {
    ranks.reset();
    (void)gpu->destroy_stream(stream);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  CallOptions options(Algorithm algorithm = Algorithm::kAuto) const {
    return {.algorithm = algorithm, .stream = stream};
  }
};

/// All ranks but rank 1, which has been killed, end well.
inline void check_survivors(testing::ForkGang& gang) {
  for (const auto& result : gang.join()) {
    INFO("rank " << result.rank << ": " << result.message);
    CHECK((result.ok || result.rank == 1));
  }
}

}  // namespace rondo::device::test
