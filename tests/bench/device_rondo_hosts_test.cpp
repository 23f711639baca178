// rondo-perf --device cuda without a GPU (device_rondo.hpp) where ranks are on several hosts, which
// are pretended.
#include <chrono>
#include <memory>

#include "tests/bench/device_rondo.hpp"

namespace rondo::bench::test {

TEST_CASE("Measurements on GPUs of several hosts have the device's results, in graphs too") {
  for (const size_t graph : {0, 5}) {
    const device::test::Pretended pretended({0, 1, 1});
    gpu = std::make_shared<FakeGpu>();
    {
      const device::test::Installed installed(gpu);
      const testing::TempDirectory directory;
      testing::require_all_ok(testing::run_ranks(
          testing::How::kThreads, 3, [&](int rank) { measure_all(directory, rank, 3, graph); },
          std::chrono::seconds{100}));
    }
    CHECK(gpu->launches > 0);
    CHECK(gpu->alive() == 0);
    gpu.reset();
  }
}

TEST_CASE("Where devices' memory cannot be registered, rondo-perf says why") {
  const device::test::Pretended pretended({0, 1});
  gpu = std::make_shared<FakeGpu>();
  {
    const device::test::Installed installed(gpu);
    const testing::TempDirectory directory;
    testing::require_all_ok(testing::run_ranks(
        testing::How::kThreads, 2,
        [&](int rank) {
          const auto made =
              make_rondo_backend({.config = device::test::config_of(directory, rank, 2, {}),
                                  .library_memory = true,
                                  .cuda = true,
                                  .local_rank = rank});
          testing::expect(made.status().message().find("--memory library: ") == 0,
                          made.status().to_string());
        },
        std::chrono::seconds{100}));
  }
  CHECK(gpu->alive() == 0);
  gpu.reset();
}

}  // namespace rondo::bench::test
