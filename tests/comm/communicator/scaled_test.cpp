// Scaled sums: every rank's input times its own factor, whichever way it goes.
#include <cmath>
#include <string>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

TEST_CASE("a scaled sum multiplies every rank's input by its own factor, and once") {
  run_each({1, 2, 3, 5}, [](Communicator& comm) {
    for (const DataType type : {kFloat, kInt, DataType::kBFloat16}) {
      for (int a = 0; a < kAlgorithms; ++a) {
        const auto algorithm = static_cast<Algorithm>(a);
        const bool forced = algorithm != Algorithm::kAuto;
        const auto& traits = algorithms::traits_of(algorithm);
        const auto* row = algorithms::find(Collective::kAllReduce, algorithm);
        const bool rounds = type == DataType::kBFloat16 && !traits.scales_small_floats;
        const bool elsewhere = traits.needs.hosts && comm.size() > 1;
        for (const size_t count : {size_t{1}, size_t{50}, size_t{3000}, size_t{40000}}) {
          for (const bool in_place : {false, true}) {
            const size_t bytes = count * size_of(type);
            Buffer in(bytes, true), other(bytes, true);
            Buffer& out = in_place ? in : other;
            for (size_t i = 0; i < count; ++i) {
              store(in.data() + i * size_of(type), type, static_cast<double>(i % 3 + 1));
            }
            const CallOptions options{.algorithm = algorithm, .factor = comm.rank() + 2.0};
            const Status status =
                comm.all_reduce(in.data(), out.data(), count, type, ReduceOp::kMulSum, options);
            if (forced && (row == nullptr || rounds || elsewhere)) {
              expect_error(status, Code::kUnavailable);
              continue;
            }
            if (forced && in_place && !row->in_place) {
              expect_error(status, Code::kInvalidArgument);
              continue;
            }
            const std::string what =
                std::string(name(type)) + " by " + std::string(name(algorithm));
            expect_ok(status, what);
            double factors = 0;
            for (int r = 0; r < comm.size(); ++r) factors += r + 2;
            check(
                out, 0, count, type,
                [&](size_t i) { return factors * static_cast<double>(i % 3 + 1); }, what);
          }
        }
      }
    }
  });
}

TEST_CASE("a factor of the other zero is another factor") {
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    const float in = 1;
    float out = 0;
    for (const double factor : {0.0, -0.0, 1.0, -0.0, 0.0}) {
      expect_ok(comm.all_reduce(&in, &out, 1, kFloat, ReduceOp::kMulSum, {.factor = factor}),
                "all_reduce");
      expect(out == 2 * factor && std::signbit(out) == std::signbit(factor),
             "times " + std::to_string(factor) + " gives " + std::to_string(out));
    }
  });
}

// What goes the direct way, and what has to go back to slots because some buffers are not mapped.
TEST_CASE("a scaled sum is the same wherever the ranks' buffers lie") {
  run_each({2, 3}, [](Communicator& comm) {
    const int n = comm.size(), rank = comm.rank();
    double factors = 0;
    for (int r = 0; r < n; ++r) factors += r + 2;
    const CallOptions scale{.factor = rank + 2.0};
    // Bit 0, 1: inputs, outputs of rank 0 in library memory; bit 2, 3: of the others.
    for (int mix = 0; mix < 16; ++mix) {
      const int own = rank == 0 ? mix : mix >> 2;
      const size_t block = 20011, count = block * static_cast<size_t>(n);
      const auto value = [](size_t i) { return static_cast<float>(i % 3 + 1); };
      const auto expected = [&](size_t i) { return factors * value(i); };
      const std::string what = "mix " + std::to_string(mix);
      Buffer in(count * 4, (own & 1) != 0), out(count * 4, (own & 2) != 0);
      auto* from = reinterpret_cast<float*>(in.data());
      auto* to = reinterpret_cast<float*>(out.data());
      for (size_t i = 0; i < count; ++i) from[i] = value(i);
      const DataType type = kFloat;
      const ReduceOp op = ReduceOp::kMulSum;
      expect_ok(comm.all_reduce(from, to, count, type, op, scale), what);
      check(out, 0, count, type, expected, "all_reduce " + what);
      expect_ok(comm.reduce(from, to, count, type, op, n - 1, scale), what);
      if (rank == n - 1) check(out, 0, count, type, expected, "reduce " + what);
      const size_t before = block * static_cast<size_t>(rank);
      const auto own_block = [&](size_t i) { return expected(before + i); };
      expect_ok(comm.reduce_scatter(from, to, block, type, op, scale), what);
      check(out, 0, block, type, own_block, "reduce_scatter " + what);
      const std::vector<size_t> counts(static_cast<size_t>(n), block);
      expect_ok(comm.reduce_scatter_v(from, to, counts, {}, type, op, scale), what);
      check(out, 0, block, type, own_block, "reduce_scatter_v " + what);
    }
  });
}

}  // namespace
}  // namespace rondo::testing
