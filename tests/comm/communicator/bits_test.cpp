// The numerical contract on real-valued data: all ranks hold the same bits, every run gives the
// same bits, direct and staged two-shot fold alike, and the result is within the error bound of a
// float64 reference.
#include <array>
#include <cmath>
#include <tuple>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "kernels/reduce.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "tests/comm/schedule/operations.hpp"

namespace rondo::testing {
namespace {

/// The i-th of as many bits without a pattern as `seed` has (splitmix64): under sanitizers <random>
/// would take longer than all else here.
uint64_t scrambled(uint64_t seed, uint64_t i) {
  uint64_t z = (seed << 32) + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Between -1 and 1, times one of `powers` powers of two around 1.
double real_value(uint64_t bits, int powers) {
  const int power = static_cast<int>(bits % 64) % powers - powers / 2;
  return std::ldexp(static_cast<double>(static_cast<int32_t>(bits >> 32)), power - 31);
}

/// Random bits of a type, but finite and of moderate size, so that order and rounding show.
std::vector<unsigned char> random_elements(int rank, size_t count, DataType type) {
  const uint64_t seed = static_cast<uint64_t>(rank) * 31 + static_cast<uint64_t>(type);
  std::vector<unsigned char> bytes(count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = scrambled(seed, i);
    const int powers = size_of(type) < 4 ? 8 : 20;
    const double value =
        is_floating(type) ? real_value(bits, powers) : static_cast<double>(bits % 100);
    store(bytes.data() + i * size_of(type), type, value);
  }
  return bytes;
}

double load(const unsigned char* at, DataType type) {
  float single;
  uint16_t half;
  std::memcpy(&half, at, std::min(sizeof half, size_of(type)));
  switch (type) {
    case DataType::kFloat16:
      return kernels::float_from_half(half);
    case DataType::kBFloat16:
      return kernels::float_from_bfloat16(half);
    case DataType::kFloat8E4M3:
      return kernels::float_from_e4m3(*at);
    case DataType::kFloat8E5M2:
      return kernels::float_from_e5m2(*at);
    default:
      std::memcpy(&single, at, sizeof single);
      return single;
  }
}

/// Sums in float64 of all ranks' random elements, and of their magnitudes.
struct Exact {
  std::vector<double> sum, magnitude;
  Exact(int ranks, size_t count, DataType type) : sum(count), magnitude(count) {
    for (int r = 0; r < ranks; ++r) {
      const std::vector<unsigned char> bytes = random_elements(r, count, type);
      for (size_t i = 0; i < count; ++i) {
        const double value = load(bytes.data() + i * size_of(type), type);
        sum[i] += value;
        magnitude[i] += std::abs(value);
      }
    }
  }
};

}  // namespace

TEST_CASE("same bits on all ranks, in all runs, and near the float64 sum") {
  for (const int size : sizes({3, 2, 5, 6, 7})) {
    for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
      INFO(name(algorithm));
      const Shared<std::array<uint64_t, 2>> hash_of_run;
      for (const size_t run : {size_t{0}, size_t{1}}) {
        run_ok(How::kForks, size, [&](Communicator& comm) {
          const size_t count = 30011;
          Buffer in(count * 4, true), out(count * 4, true);
          std::memcpy(in.data(), random_elements(comm.rank(), count, kFloat).data(), count * 4);
          expect_ok(comm.all_reduce(in.data(), out.data(), count, kFloat, ReduceOp::kSum,
                                    {.algorithm = algorithm}),
                    "all_reduce");
          const Exact exact(size, count, kFloat);
          for (size_t i = 0; i < count; ++i) {
            // N - 1 additions, each within half a unit in the last place of its partial sum.
            const double bound = (size - 1) * std::ldexp(1.0, -24) * exact.magnitude[i] * 1.01;
            const double error = std::abs(load(out.data() + 4 * i, kFloat) - exact.sum[i]);
            if (!(error <= bound)) expect(false, "too far off: element " + std::to_string(i));
          }
          const std::string_view bits(reinterpret_cast<const char*>(out.data()), count * 4);
          const uint64_t hash = std::hash<std::string_view>{}(bits);
          std::vector<uint64_t> hashes(static_cast<size_t>(size));
          expect_ok(comm.all_gather(&hash, hashes.data(), 1, DataType::kInt64), "all_gather");
          expect(hashes == std::vector<uint64_t>(hashes.size(), hash), "other bits elsewhere");
          if (comm.rank() == 0) (*hash_of_run)[run] = hash;
        });
      }
      CHECK((*hash_of_run)[0] == (*hash_of_run)[1]);
    }
  }
}

namespace {

/// The definition: a left fold in rank order, one rounding, one division.
std::vector<unsigned char> reference(int size, size_t count, DataType type, ReduceOp op) {
  std::vector<std::vector<unsigned char>> inputs;
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size; ++r) inputs.push_back(random_elements(r, count, type));
  for (const auto& input : inputs)
    sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<unsigned char> result(count * size_of(type));
  std::byte* const to = reinterpret_cast<std::byte*>(result.data());
  kernels::scalar_move_function(
      type, op)({.sources = sources.data(),
                 .destinations = &to,
                 .source_count = static_cast<uint32_t>(size),
                 .destination_count = 1,
                 .count = count,
                 .divisor = op == ReduceOp::kAvg ? static_cast<uint32_t>(size) : 1,
                 .nontemporal = 0});
  return result;
}

struct Way {
  DataType type;
  ReduceOp op;
  Algorithm algorithm;
  size_t count, misalignment;
  bool library, in_place;
};

/// all_reduce, reduce and reduce_scatter, each compared with the reference; how many were done.
int fold_every_way(Communicator& comm, const Way& w) {
  const size_t element = size_of(w.type), bytes = w.count * element;
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const std::vector<unsigned char> wanted = reference(comm.size(), w.count, w.type, w.op);
  const std::vector<unsigned char> own = random_elements(comm.rank(), w.count, w.type);
  const std::string what = std::to_string(w.count) + " " + std::string(name(w.type)) + " " +
                           std::string(name(w.op)) + " by " + std::string(name(w.algorithm)) +
                           (w.library ? " library" : "") + (w.in_place ? " in place" : "");
  int done = 0;
  const auto judge = [&](const Status& status, const unsigned char* got, size_t first,
                         size_t count) {
    if (w.algorithm != Algorithm::kAuto && !status.ok()) return;
    expect_ok(status, what);
    ++done;
    expect(std::memcmp(got, wanted.data() + first * element, count * element) == 0,
           what + ": other bits than a fold in rank order");
  };
  Buffer in(bytes, w.library, w.misalignment), other(bytes, w.library, w.misalignment);
  Buffer& out = w.in_place ? in : other;
  const CallOptions options{.algorithm = w.algorithm};
  std::memcpy(in.data(), own.data(), bytes);
  Status status = comm.all_reduce(in.data(), out.data(), w.count, w.type, w.op, options);
  judge(status, out.data(), 0, w.count);
  std::memcpy(in.data(), own.data(), bytes);
  status = comm.reduce(in.data(), out.data(), w.count, w.type, w.op, comm.size() - 1, options);
  if (r + 1 == n) judge(status, out.data(), 0, w.count);
  std::memcpy(in.data(), own.data(), bytes);
  const size_t part = w.count / n;
  unsigned char* to = w.in_place ? in.data() + r * part * element : out.data();
  status = comm.reduce_scatter(in.data(), to, part, w.type, w.op, options);
  judge(status, to, r * part, part);
  return done;
}

}  // namespace

TEST_CASE(
    "reproducible: the same bits whatever the size, place, algorithm, channels and transport") {
  for (const int size : sizes({2, 3, 5, 4, 6, 7, 8})) {
    for (const auto& [slot_bytes, channels, pace] : {std::tuple<size_t, int, const char*>{0, 1, ""},
                                                     {64, 1, ""},
                                                     {448, 3, ""},
                                                     {0, 1, "inf,1us"}}) {
      Config config = with(&Config::reproducible, true);
      config.slot_bytes = slot_bytes;
      config.channels = channels;
      config.pace = pace;
      INFO("slots of " << slot_bytes << ", " << channels << " channels " << pace);
      run_ok(size < 5 ? How::kForks : How::kThreads, size, config, [&](Communicator& comm) {
        int done = 0;
        for (const DataType type : {kFloat, DataType::kFloat64, DataType::kFloat16,
                                    DataType::kBFloat16, DataType::kFloat8E4M3, kInt}) {
          const bool wide = type == kFloat || type == DataType::kBFloat16;
          for (int a = 0; a < kAlgorithms; ++a) {
            const auto algorithm = static_cast<Algorithm>(a);
            if (!wide && algorithm != Algorithm::kAuto) continue;
            for (const size_t count : {size_t{1}, size_t{77}, size_t{1000}, size_t{9001}}) {
              const bool odd = count % 2 == 1;
              done += fold_every_way(
                  comm, {type, count == 77 ? ReduceOp::kAvg : ReduceOp::kSum, algorithm, count,
                         odd ? size_t{1} : size_t{0}, (a + size) % 2 == 0, count == 1000});
            }
          }
        }
        expect(done > 60, "only " + std::to_string(done) + " were done");
      });
    }
  }
}

TEST_CASE("reproducible: what cannot be is refused by name") {
  Config config = with(&Config::reproducible, true);
  config.algorithm = Algorithm::kRing;  // gives way where it would not be reproducible
  run_ok(How::kForks, 3, config, [](Communicator& comm) {
    std::vector<float> data(1000, 1.0f);
    for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
      if (algorithms::traits_of(algorithm).folds_in_rank_order) continue;
      expect_error(comm.all_reduce(data, data, {.algorithm = algorithm}), Code::kUnavailable,
                   "does not fold in rank order");
    }
    expect_error(comm.all_reduce(data.data(), data.data(), 1000, DataType::kBFloat16,
                                 ReduceOp::kMulSum, {.factor = 0.5}),
                 Code::kUnavailable, "no reproducible scaled sum");
    expect_ok(comm.all_reduce(data, data), "sum");
    expect(comm.plan(Collective::kAllReduce, 1000, kFloat).algorithm != Algorithm::kRing, "a ring");
    expect(comm.plan(Collective::kAllGather, 1000, kFloat).algorithm == Algorithm::kRing,
           "no ring");
  });
}

TEST_CASE(
    "a ring of small floats rounds once per hop: within the stated bound of the float64 sum") {
  for (const int size : sizes({2, 3, 5, 8})) {
    run_ok(How::kThreads, size, [](Communicator& comm) {
      // Half a unit in the last place, and the smallest step, of each type.
      for (const auto& [type, unit, smallest] : {std::tuple{DataType::kFloat16, 0x1p-11, 0x1p-24},
                                                 {DataType::kBFloat16, 0x1p-8, 0x1p-24},
                                                 {DataType::kFloat8E5M2, 0x1p-3, 0x1p-16},
                                                 {DataType::kFloat8E4M3, 0x1p-4, 0x1p-9}}) {
        const size_t count = 3001, element = size_of(type);
        const int n = comm.size();
        const Exact exact(n, count, type);
        std::vector<unsigned char> in = random_elements(comm.rank(), count, type), out(in.size());
        expect_ok(comm.all_reduce(in.data(), out.data(), count, type, ReduceOp::kSum,
                                  {.algorithm = Algorithm::kRing}),
                  "ring");
        // kernels/README.md: N - 1 roundings, each of at most half a unit in the last place of a
        // partial sum that the ones before may have made larger, and at least one of the smallest
        // steps of the type.
        const double growth = std::pow(1 + unit, n - 1) - 1;
        double worst = 0;
        for (size_t i = 0; i < count; ++i) {
          const double error = std::abs(load(out.data() + i * element, type) - exact.sum[i]);
          const double bound = growth * exact.magnitude[i] + (n - 1) * smallest;
          if (!(error <= bound)) {
            expect(false, std::string(name(type)) + ": element " + std::to_string(i) + " is " +
                              std::to_string(error / bound) + " bounds off");
          }
          worst = std::max(worst, error / bound);
        }
        // The bound is no wall far away.
        expect(worst > 0.1, std::string(name(type)) + ": the bound is never approached");
      }
    });
  }
}

namespace {

/// A pattern of false and several kinds of true.
std::vector<unsigned char> some_bools(size_t count) {
  std::vector<unsigned char> bools(count);
  for (size_t i = 0; i < count; ++i) bools[i] = std::array{0, 1, 2, 200}[i % 4] & 0xff;
  return bools;
}

void scan_bools(Communicator& comm, ReduceOp op, bool in_place) {
  const bool starts_true = op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kBand;
  const DataType type = DataType::kBool;
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing, Algorithm::kTwoShot}) {
    for (const bool inclusive : {true, false}) {
      for (const size_t count : {size_t{4}, size_t{5000}}) {
        std::vector<unsigned char> in = some_bools(count), other(count, 0xcd);
        std::vector<unsigned char>& out = in_place ? in : other;
        const CallOptions options{.algorithm = algorithm};
        expect_ok(inclusive ? comm.inclusive_scan(in.data(), out.data(), count, type, op, options)
                            : comm.exclusive_scan(in.data(), out.data(), count, type, op, options),
                  "scan");
        for (size_t i = 0; i < count; ++i) {
          const bool nothing = !inclusive && comm.rank() == 0;
          expect_eq(out[i] + 0, (nothing ? starts_true : i % 4 != 0) ? 1 : 0, "scan of bools");
        }
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "scans: one-hop folds are the reference, and chains are the same where slots round nothing") {
  for (const bool reproducible : {false, true}) {
    INFO((reproducible ? "reproducible" : "in any order"));
    for (const int size : {1, 2, 3, 5}) {
      run_ok(
          How::kThreads, size, with(&Config::reproducible, reproducible), [&](Communicator& comm) {
            for (const DataType type : {kFloat, DataType::kFloat64, DataType::kBFloat16,
                                        DataType::kFloat16, DataType::kFloat8E4M3}) {
              const bool small = size_of(type) < 4;
              const ReduceOp sum = ReduceOp::kSum;
              for (const Algorithm algorithm :
                   {Algorithm::kAuto, Algorithm::kRing, Algorithm::kTwoShot}) {
                // A ring rounds small floats once per rank.
                const bool at_once = algorithm == Algorithm::kTwoShot ||
                                     (reproducible && algorithm == Algorithm::kAuto);
                if (small && !at_once) continue;
                for (const size_t count : {size_t{1}, size_t{77}, size_t{9001}}) {
                  std::vector<unsigned char> in = random_elements(comm.rank(), count, type);
                  std::vector<unsigned char> out(in.size());
                  const CallOptions options{.algorithm = algorithm};
                  const std::string what =
                      std::string(name(type)) + ": other bits than the reference";
                  expect_ok(comm.inclusive_scan(in.data(), out.data(), count, type, sum, options),
                            "inclusive_scan");
                  expect(out == reference(comm.rank() + 1, count, type, sum), "inclusive, " + what);
                  expect_ok(comm.exclusive_scan(in.data(), out.data(), count, type, sum, options),
                            "exclusive_scan");
                  if (comm.rank() == 0) continue;
                  expect(out == reference(comm.rank(), count, type, sum), "exclusive, " + what);
                }
              }
            }
            if (comm.size() == 1 || !reproducible) return;
            uint16_t in = 0, out = 0;
            const Status refused = comm.inclusive_scan(
                &in, &out, 1, DataType::kBFloat16, ReduceOp::kSum, {.algorithm = Algorithm::kRing});
            expect_error(refused, Code::kUnavailable);
          });
    }
  }
}

TEST_CASE("a reduction of bools gives 0 or 1, on one rank, too") {
  for (const int size : {1, 2, 3}) {
    run_ok(How::kThreads, size, [size](Communicator& comm) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kMulSum}) {
        for (const bool in_place : {false, true}) {
          const auto n = static_cast<size_t>(size);
          std::vector<unsigned char> in = some_bools(4 * n), out(4 * n, 0xcd);
          unsigned char* const to = in_place ? in.data() : out.data();
          expect_ok(comm.all_reduce(in.data(), to, 4 * n, DataType::kBool, op), "all_reduce");
          for (size_t i = 0; i < 4 * n; ++i) expect_eq(to[i] + 0, i % 4 == 0 ? 0 : 1, "all_reduce");
          in = some_bools(4 * n);
          unsigned char* const block =
              in_place ? in.data() + 4 * static_cast<size_t>(comm.rank()) : out.data();
          expect_ok(comm.reduce_scatter(in.data(), block, 4, DataType::kBool, op),
                    "reduce_scatter");
          for (int i = 0; i < 4; ++i) expect_eq(block[i] + 0, i == 0 ? 0 : 1, "reduce_scatter");
          scan_bools(comm, op, in_place);
        }
      }
    });
  }
}

TEST_CASE("denormals are kept even where the caller's thread flushes them") {
#if defined(__x86_64__)
  run_ok(How::kForks, 2, [](Communicator& comm) {
    const unsigned flush = 0x8040;
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | flush);
    uint32_t in = 3, out = 0;  // three times the smallest denormal
    expect_ok(comm.all_reduce(&in, &out, 1, kFloat), "all_reduce");
    expect_eq(out, 6u, "sum of denormals");
    expect((__builtin_ia32_stmxcsr() & flush) == flush, "the caller's mode was not restored");
  });
#endif
}

}  // namespace rondo::testing
