// The numerical contract on real-valued data: all ranks hold the same bits, every run gives the
// same bits, direct and staged two-shot fold alike, and the result is within the error bound of a
// float64 reference.
#include <array>
#include <cmath>
#include <tuple>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "kernels/reduce.hpp"
#include "tests/comm/communicator/world.hpp"
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

std::vector<float> real_values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(real_value(scrambled(static_cast<uint64_t>(rank) + 17, i), 20));
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
  for (const int size : sizes({3, 2, 5, 6, 7})) {
    for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
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
            if (!(std::abs(static_cast<double>(sum[i]) - exact[i]) <= bound)) {
              expect(false, "element " + std::to_string(i) + " is too far off");
            }
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

namespace {

/// Random bits of a type, but finite and of moderate size, so that order and rounding show.
std::vector<unsigned char> random_elements(int rank, size_t count, DataType type) {
  const uint64_t seed = static_cast<uint64_t>(rank) * 31 + static_cast<uint64_t>(type);
  std::vector<unsigned char> bytes(count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = scrambled(seed, i);
    const double value = is_floating(type) ? real_value(bits, 8) : static_cast<double>(bits % 100);
    store(bytes.data() + i * size_of(type), type, value);
  }
  return bytes;
}

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
  status = comm.reduce(in.data(), out.data(), w.count, w.type, comm.size() - 1, w.op, options);
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
      Config config;
      config.reproducible = true;
      config.slot_bytes = slot_bytes;
      config.channels = channels;
      config.pace = pace;
      INFO(size << " ranks, slots of " << slot_bytes << ", " << channels << " channels " << pace);
      require_all_ok(run_world(
          size < 5 ? How::kForks : How::kThreads, size,
          [&](Communicator& comm) {
            int done = 0;
            for (const DataType type :
                 {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBFloat16,
                  DataType::kFloat8E4M3, DataType::kInt32}) {
              const bool wide = type == DataType::kFloat32 || type == DataType::kBFloat16;
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
          },
          config));
    }
  }
}

TEST_CASE("reproducible: what cannot be is refused by name") {
  Config config;
  config.reproducible = true;
  config.algorithm = Algorithm::kRing;  // gives way where it would not be reproducible
  require_all_ok(run_world(
      How::kForks, 3,
      [](Communicator& comm) {
        std::vector<float> data(1000, 1.0f);
        const auto refused = [&](const Status& status, const std::string& words) {
          expect(status.code() == Code::kUnavailable, status.to_string());
          expect(status.message().find(words) != std::string::npos, status.to_string());
        };
        for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
          if (algorithms::traits_of(algorithm).folds_in_rank_order) continue;
          refused(comm.all_reduce(data.data(), data.data(), 1000, DataType::kFloat32,
                                  ReduceOp::kSum, {.algorithm = algorithm}),
                  "does not fold in rank order");
        }
        refused(comm.all_reduce(data.data(), data.data(), 1000, DataType::kBFloat16,
                                ReduceOp::kScaledSum, {.factor = 0.5}),
                "no reproducible scaled sum");
        expect_ok(comm.all_reduce(data.data(), data.data(), 1000, DataType::kFloat32), "sum");
        expect(comm.plan(Collective::kAllReduce, 1000, DataType::kFloat32).algorithm !=
                   Algorithm::kRing,
               "a ring");
        expect(comm.plan(Collective::kAllGather, 1000, DataType::kFloat32).algorithm ==
                   Algorithm::kRing,
               "no ring");
      },
      config));
}

TEST_CASE(
    "a ring of small floats rounds once per hop: within the stated bound of the float64 sum") {
  for (const int size : sizes({2, 3, 5, 8})) {
    require_all_ok(run_world(How::kThreads, size, [](Communicator& comm) {
      for (const auto& [type, unit] : {std::pair{DataType::kFloat16, std::ldexp(1.0, -11)},
                                       std::pair{DataType::kBFloat16, std::ldexp(1.0, -8)},
                                       std::pair{DataType::kFloat8E5M2, std::ldexp(1.0, -3)},
                                       std::pair{DataType::kFloat8E4M3, std::ldexp(1.0, -4)}}) {
        const size_t count = 3001, element = size_of(type);
        const int n = comm.size();
        std::vector<double> exact(count, 0.0), magnitude(count, 0.0);
        const auto load = [&](const unsigned char* at) {
          if (type == DataType::kFloat16 || type == DataType::kBFloat16) {
            uint16_t bits;
            std::memcpy(&bits, at, 2);
            return static_cast<double>(type == DataType::kFloat16
                                           ? kernels::float_from_half(bits)
                                           : kernels::float_from_bfloat16(bits));
          }
          return static_cast<double>(type == DataType::kFloat8E4M3 ? kernels::float_from_e4m3(*at)
                                                                   : kernels::float_from_e5m2(*at));
        };
        for (int r = 0; r < n; ++r) {
          const auto values = random_elements(r, count, type);
          for (size_t i = 0; i < count; ++i) {
            const double value = load(values.data() + i * element);
            exact[i] += value;
            magnitude[i] += std::abs(value);
          }
        }
        std::vector<unsigned char> in = random_elements(comm.rank(), count, type), out(in.size());
        expect_ok(comm.all_reduce(in.data(), out.data(), count, type, ReduceOp::kSum,
                                  {.algorithm = Algorithm::kRing}),
                  "ring");
        // kernels/README.md: N - 1 roundings, each of at most half a unit in the last place of a
        // partial sum that the ones before may have made larger, and at least one of the smallest
        // steps of the type.
        const double smallest = type == DataType::kFloat8E4M3   ? std::ldexp(1.0, -9)
                                : type == DataType::kFloat8E5M2 ? std::ldexp(1.0, -16)
                                                                : std::ldexp(1.0, -24);
        const double growth = std::pow(1 + unit, n - 1) - 1;
        double worst = 0;
        for (size_t i = 0; i < count; ++i) {
          const double error = std::abs(load(out.data() + i * element) - exact[i]);
          const double bound = growth * magnitude[i] + (n - 1) * smallest;
          if (!(error <= bound)) {
            expect(false, std::string(name(type)) + ": element " + std::to_string(i) +
                              " is off by " + std::to_string(error) + ", more than " +
                              std::to_string(bound));
          }
          worst = std::max(worst, error / bound);
        }
        // The bound is no wall far away.
        expect(worst > 0.1, std::string(name(type)) + ": the bound is never approached");
      }
    }));
  }
}

namespace {

void scan_bools(Communicator& comm, ReduceOp op, bool in_place) {
  const bool starts_true = op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kBand;
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing, Algorithm::kTwoShot}) {
    for (const bool inclusive : {true, false}) {
      for (const size_t count : {size_t{4}, size_t{5000}}) {
        std::vector<unsigned char> in(count), other(count, 0xcd);
        for (size_t i = 0; i < count; ++i) in[i] = std::array{0, 1, 2, 200}[i % 4] & 0xff;
        std::vector<unsigned char>& out = in_place ? in : other;
        const CallOptions options{.algorithm = algorithm};
        const DataType type = DataType::kBool;
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
    Config config;
    config.reproducible = reproducible;
    for (const int size : {1, 2, 3, 5}) {
      INFO(size << " ranks" << (reproducible ? ", reproducible" : ""));
      require_all_ok(run_world(
          How::kThreads, size,
          [&](Communicator& comm) {
            for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16,
                                        DataType::kFloat16, DataType::kFloat8E4M3}) {
              const bool small = size_of(type) < 4;
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
                  expect_ok(comm.inclusive_scan(in.data(), out.data(), count, type, ReduceOp::kSum,
                                                options),
                            "inclusive_scan");
                  expect(out == reference(comm.rank() + 1, count, type, ReduceOp::kSum),
                         std::string(name(type)) + " inclusive: other bits");
                  expect_ok(comm.exclusive_scan(in.data(), out.data(), count, type, ReduceOp::kSum,
                                                options),
                            "exclusive_scan");
                  if (comm.rank() == 0) continue;
                  expect(out == reference(comm.rank(), count, type, ReduceOp::kSum),
                         std::string(name(type)) + " exclusive: other bits");
                }
              }
            }
            if (comm.size() == 1 || !reproducible) return;
            uint16_t in = 0, out = 0;
            const Status refused = comm.inclusive_scan(
                &in, &out, 1, DataType::kBFloat16, ReduceOp::kSum, {.algorithm = Algorithm::kRing});
            expect(refused.code() == Code::kUnavailable, refused.to_string());
          },
          config));
    }
  }
}

TEST_CASE("a reduction of bools gives 0 or 1, on one rank, too") {
  for (const int size : {1, 2, 3}) {
    require_all_ok(run_world(How::kThreads, size, [size](Communicator& comm) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kScaledSum}) {
        for (const bool in_place : {false, true}) {
          const auto n = static_cast<size_t>(size);
          std::vector<unsigned char> in(4 * n), out(4 * n, 0xcd);
          for (size_t i = 0; i < in.size(); ++i) in[i] = std::array{0, 1, 2, 200}[i % 4] & 0xff;
          unsigned char* const to = in_place ? in.data() : out.data();
          expect_ok(comm.all_reduce(in.data(), to, 4 * n, DataType::kBool, op), "all_reduce");
          for (size_t i = 0; i < 4 * n; ++i) expect_eq(to[i] + 0, i % 4 == 0 ? 0 : 1, "all_reduce");
          for (size_t i = 0; i < in.size(); ++i) in[i] = std::array{0, 1, 2, 200}[i % 4] & 0xff;
          unsigned char* const block =
              in_place ? in.data() + 4 * static_cast<size_t>(comm.rank()) : out.data();
          expect_ok(comm.reduce_scatter(in.data(), block, 4, DataType::kBool, op),
                    "reduce_scatter");
          for (int i = 0; i < 4; ++i) expect_eq(block[i] + 0, i == 0 ? 0 : 1, "reduce_scatter");
          scan_bools(comm, op, in_place);
        }
      }
    }));
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
