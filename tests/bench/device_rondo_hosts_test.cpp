// rondo-perf --device cuda without a GPU (device_rondo.hpp) where ranks are on several hosts, which
// are pretended.
#include <memory>

#include "tests/bench/device_rondo.hpp"

namespace rondo::bench::test {

TEST_CASE("Measurements on GPUs of several hosts have the device's results, in graphs too") {
  for (const size_t graph : {0, 5}) {
    const device::test::Pretended pretended({0, 1, 1});
    run_on(std::make_shared<FakeGpu>(), 3,
           [&](int rank, const auto& directory) { measure_all(directory, rank, 3, graph); });
    CHECK(gpu->launches > 0);
  }
}

TEST_CASE("Where devices' memory cannot be registered, rondo-perf says why") {
  const device::test::Pretended pretended({0, 1});
  run_on(std::make_shared<FakeGpu>(), 2, [](int rank, const auto& directory) {
    const auto made = make_rondo_backend({.config = device::test::config_of(directory, rank, 2, {}),
                                          .library_memory = true,
                                          .cuda = true,
                                          .local_rank = rank});
    testing::expect(made.status().message().starts_with("--memory library: "),
                    made.status().to_string());
  });
}

}  // namespace rondo::bench::test
