// The numerical contract on real-valued data: all ranks hold the same bits, every run gives the
// same bits, direct and staged two-shot fold alike, and the result is within the error bound of a
// float64 reference.
#include <cmath>
#include <random>

#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

std::vector<float> real_values(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17);
  std::uniform_real_distribution<float> wide(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& v : values)
    v = wide(random) * std::exp2(static_cast<float>(static_cast<int>(random() % 20) - 10));
  return values;
}

uint64_t hash(const void* data, size_t bytes) {
  uint64_t h = 1469598103934665603u;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i)
    h = (h ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  return h;
}

}  // namespace

TEST_CASE("same bits on all ranks, in all runs, and near the float64 sum") {
  for (const int size : {3, 5, 6, 7}) {
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kTwoShotDirect}) {
      INFO(size << " ranks, " << name(algorithm));
      const TempDirectory directory;
      uint64_t first_run = 0;
      for (int run = 0; run < 2; ++run) {
        const TempDirectory results;
        require_all_ok(run_ranks(How::kForks, size, [&](int rank) {
          auto comm = Communicator::create(world_config(directory.path(), rank, size));
          expect(comm.ok(), comm.status().to_string());
          const size_t count = 30011;
          Buffer in(count * 4, true), out(count * 4, true);
          const auto own = real_values(rank, count);
          std::memcpy(in.data(), own.data(), count * 4);
          expect_ok(comm->all_reduce(in.data(), out.data(), count, DataType::kFloat32,
                                     ReduceOp::kSum, {.algorithm = algorithm}),
                    "all_reduce");
          std::vector<double> exact(count, 0.0), magnitude(count, 0.0);
          for (int r = 0; r < size; ++r) {
            const auto values = real_values(r, count);
            for (size_t i = 0; i < count; ++i) {
              exact[i] += static_cast<double>(values[i]);
              magnitude[i] += std::abs(static_cast<double>(values[i]));
            }
          }
          std::vector<float> sum(count);
          std::memcpy(sum.data(), out.data(), count * 4);
          for (size_t i = 0; i < count; ++i) {
            // N - 1 additions, each within half a unit in the last place of its partial sum.
            const double bound = (size - 1) * std::ldexp(1.0, -24) * magnitude[i] * 1.01;
            expect(std::abs(static_cast<double>(sum[i]) - exact[i]) <= bound,
                   "element " + std::to_string(i) + " is too far off");
          }
          // Everybody's hash, by all_gather.
          const uint64_t own_hash = hash(out.data(), count * 4);
          std::vector<uint64_t> hashes(static_cast<size_t>(size));
          expect_ok(comm->all_gather(&own_hash, hashes.data(), 1, DataType::kInt64), "all_gather");
          for (const uint64_t h : hashes) expect_eq(h, own_hash, "hash");
          if (rank == 0) {
            std::FILE* file = std::fopen((results.path() + "/hash").c_str(), "w");
            std::fprintf(file, "%llu", static_cast<unsigned long long>(own_hash));
            std::fclose(file);
          }
        }));
        std::FILE* file = std::fopen((results.path() + "/hash").c_str(), "r");
        REQUIRE(file != nullptr);
        unsigned long long value = 0;
        REQUIRE(std::fscanf(file, "%llu", &value) == 1);
        std::fclose(file);
        if (run == 0) first_run = value;
        CHECK(value == first_run);
      }
    }
  }
}

TEST_CASE("denormals are kept even where the caller's thread flushes them") {
#if defined(__x86_64__)
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    const unsigned flush = 0x8040;
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | flush);
    uint32_t in = 3, out = 0;  // three times the smallest denormal
    expect_ok(comm.all_reduce(&in, &out, 1, DataType::kFloat32), "all_reduce");
    expect_eq(out, 6u, "sum of denormals");
    expect((__builtin_ia32_stmxcsr() & flush) == flush, "the caller's mode was not restored");
  }));
#endif
}

}  // namespace rondo::testing
