// rondo-perf --device cuda without a GPU (device_rondo.hpp).
#include "tests/bench/device_rondo.hpp"

#include <memory>

#include "bench/harness/run.hpp"
#include "comm/algorithms/algorithm.hpp"

namespace rondo::bench {

using namespace test;  // NOLINT: this file is about it

Result<std::unique_ptr<CudaMemory>> open_cuda_memory(int) {
  return std::unique_ptr<CudaMemory>(std::make_unique<FakeMemory>());
}

TEST_CASE("Measurements on a device have its results, launched or replayed") {
  for (const size_t graph : {0, 5}) {
    for (const int ranks : testing::sizes({1, 2, 3})) {
      run_on(std::make_shared<FakeGpu>(), ranks,
             [&](int rank, const auto& directory) { measure_all(directory, rank, ranks, graph); });
      CHECK(gpu->launches > 0);
    }
  }
}

TEST_CASE("Library memory on a device is registered, so that processes access each other's") {
  for (const size_t graph : {0, 5}) {
    // Algorithms that are refused for other memory.
    for (const Algorithm direct : {Algorithm::kTwoShotDirect, Algorithm::kCopyEngine}) {
      const auto processes = std::make_shared<FakeGpu>(2);
      processes->imports_elsewhere = true;
      processes->ranks_of_a_process = 1;
      run_on(processes, 3, [&](int rank, const auto& directory) {
        measure_all(directory, rank, 3, graph, true, direct);
      });
      CHECK(gpu->trespasses == 0);
      CHECK(gpu->freed_while_imported == 0);
    }
  }
}

TEST_CASE("Where one rank's memory on a device cannot be registered, none has any") {
  const auto processes = std::make_shared<FakeGpu>(2);
  processes->ranks_of_a_process = 1;
  run_on(processes, 2, [](int rank, const auto& directory) {
    auto made = make_rondo_backend({.config = testing::world_config(directory.path(), rank, 2),
                                    .library_memory = true,
                                    .cuda = true,
                                    .local_rank = rank});
    testing::expect_ok(made.status(), "the backend");
    Backend& backend = **made;
    void* const memory = backend.allocate(rank == 0 ? 4096 : FakeMemory::kTooMuch);
    testing::expect(memory == nullptr, "no rank has memory");
    backend.release(memory);
    testing::expect_ok(backend.barrier(), "the communicator goes on");
  });
}

TEST_CASE("bench knows which algorithms are safe in place as their traits do") {
  for (int c = 0; c < kCollectives; ++c) {
    for (const algorithms::AlgorithmTraits* traits : algorithms::all()) {
      const auto collective = static_cast<Collective>(c);
      if (!can_be_in_place(collective) || !algorithms::find(collective, traits->algorithm))
        continue;
      CAPTURE(name(collective), name(traits->algorithm));
      CHECK(is_safe_in_place(collective, traits->algorithm) ==
            algorithms::is_in_place_safe(collective, traits->algorithm));
    }
  }
}

// One fast size and few operations: its tables are printed among the test's own lines.
TEST_CASE("rondo-perf compares on the device, and fails when an element is wrong there") {
  for (const bool wrong : {false, true}) {
    spoils = wrong;
    comparisons = 0;
    run_on(std::make_shared<FakeGpu>(), 2, [&](int rank, const auto& directory) {
      auto made = make_rondo_backend({.config = testing::world_config(directory.path(), rank, 2),
                                      .cuda = true,
                                      .local_rank = rank,
                                      .ranks_in_process = 2});
      testing::expect_ok(made.status(), "the backend");
      PerfOptions options;
      options.sweep = {.min = 4096, .max = 4096, .factor = 1, .step = 1};
      options.iterations = 1;
      options.cuda = true;
      options.unalign = 1;
      const int code = run_rank({.name = "test", .description = ""}, options, **made, "", {});
      testing::expect_eq(code, wrong ? 1 : 0, "the exit code");
    });
    CHECK(comparisons == 2 * 3);  // output and input, and in place the output
  }
  spoils = false;
}

}  // namespace rondo::bench
