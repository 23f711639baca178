// The backend measures times (by the steady clock, unless it has another) around batches of
// operations. A batch starts when all ranks have left a barrier of the same backend, which is not
// timed. The streaming probe runs between batches, so that both see the same neighbours.
#include "bench/harness/measure.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "bench/harness/pattern.hpp"
#include "bench/harness/stream.hpp"

namespace rondo::bench {
namespace {

constexpr size_t kBatches = 11;
constexpr double kDefaultTotalUs = 100'000;
constexpr double kEstimateUs = 500;
// Limits of the pass that times operations one by one: its duration, and its number of operations.
constexpr double kSpreadTotalUs = 20'000;
constexpr size_t kMostSamples = 1000;

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Result<double> time_stream(Backend& backend, const Buffers& buffers, const LeastTraffic& traffic) {
  RONDO_TRY(backend.barrier());
  const auto start = Clock::now();
  stream(buffers.in, buffers.out, traffic);
  return microseconds_since(start);
}

struct ShapeTime {
  double time_us;
  std::optional<double> limit_us;
};

Result<ShapeTime> time_shape(Backend& backend, const BackendCall& operation, const Buffers& buffers,
                             const MeasureOptions& options) {
  for (size_t i = 0; i < options.warmup; ++i) RONDO_TRY(backend.run(operation));
  size_t iterations = options.iterations;
  if (iterations == 0) {
    auto chosen = RONDO_TRY(choose_iterations(backend, operation, kDefaultTotalUs));
    iterations = std::max(chosen, kBatches);
  }
  const size_t batches = std::min(iterations, kBatches);
  const size_t per_batch = (iterations + batches - 1) / batches;
  const bool limited = backend.is_on_host() &&
                       size_bytes(operation.shape, backend.size()) > options.limit_from_bytes;
  const LeastTraffic traffic = least_traffic(operation.shape, backend.rank(), backend.size());
  std::vector<double> times, limits;
  for (size_t batch = 0; batch < batches; ++batch) {
    times.push_back(RONDO_TRY(time_batch(backend, operation, per_batch)));
    if (!limited) continue;
    limits.push_back(RONDO_TRY(time_stream(backend, buffers, traffic)));
  }
  auto batch_times = RONDO_TRY(across_ranks(backend, times, options.across));
  ShapeTime timing{.time_us = median(batch_times), .limit_us = std::nullopt};
  if (limited) {
    auto slowest_limits = RONDO_TRY(slowest_of(backend, limits));
    timing.limit_us = median(slowest_limits);
  }
  return timing;
}

/// Separate from the batches of the main number, which must not be disturbed by reading the clock.
Result<Spread> time_singly(Backend& backend, const BackendCall& operation, size_t operations) {
  std::vector<double> times(operations);
  RONDO_TRY(backend.barrier());
  for (double& time : times) {
    time = RONDO_TRY(backend.time(operation, 1));
  }
  auto slowest = RONDO_TRY(slowest_of(backend, times));
  return spread_of(std::move(slowest));
}

size_t samples_for(double time_us, size_t iterations) {
  if (iterations > 0) return std::min(iterations, kMostSamples);
  const double fitting = kSpreadTotalUs / std::max(time_us, 1e-3);
  return static_cast<size_t>(
      std::clamp(fitting, static_cast<double>(kBatches), static_cast<double>(kMostSamples)));
}

/// Wrong elements, counted where they are; the first is fetched and shown with its expected value.
Result<uint64_t> wrong_there(Backend& backend, DataType type, const char* what, const void* found,
                             const std::byte* expected, size_t count) {
  if (count == 0) return 0;
  auto mismatch = RONDO_TRY(backend.compare(found, expected, count, type));
  if (mismatch.wrong == 0) return 0;
  const size_t element = size_of(type), at = mismatch.first * element;
  std::byte* const first = static_cast<std::byte*>(const_cast<void*>(found)) + at;
  RONDO_TRY(backend.take(first, element));
  uint64_t is = 0, should_be = 0;
  std::memcpy(&is, first, element);
  std::memcpy(&should_be, expected + at, element);
  spdlog::error("rank {}: {} of {} elements of the {} are wrong: element {} is {:#x}, not {:#x}",
                backend.rank(), mismatch.wrong, count, what, mismatch.first, is, should_be);
  return mismatch.wrong;
}

/// This rank's wrong elements after `operation`.
Result<uint64_t> wrong_on_rank(Backend& backend, const Pattern& pattern,
                               const BackendCall& operation, const Buffers& buffers) {
  const CallShape& shape = operation.shape;
  const int rank = backend.rank(), ranks = backend.size();
  const bool overlap = operation.in_place && reads(shape, rank) && writes(shape, rank);
  if (buffers.expected == nullptr) {
    const size_t element = size_of(shape.type);
    RONDO_TRY(backend.take(buffers.in, in_elements(shape, ranks) * element));
    RONDO_TRY(backend.take(buffers.out, out_elements(shape, ranks) * element));
    return pattern.wrong_output(rank, operation.out) +
           (overlap ? 0 : pattern.wrong_input(rank, operation.in));
  }
  const auto* const expected = static_cast<const std::byte*>(buffers.expected);
  const size_t outputs = pattern.out_count(rank);
  auto wrong = wrong_there(backend, shape.type, "output", operation.out, expected, outputs);
  if (!wrong.ok() || overlap) return wrong;
  auto spoilt =
      RONDO_TRY(wrong_there(backend, shape.type, "input", operation.in,
                            expected + outputs * size_of(shape.type), pattern.in_count(rank)));
  return *wrong + spoilt;
}

}  // namespace

Spread spread_of(std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  const size_t n = times_us.size();
  const auto percentile = [&](size_t percent) { return times_us[(n * percent + 99) / 100 - 1]; };
  double sum = 0;
  for (const double time : times_us) sum += time;
  return {.samples = n,
          .min = times_us.front(),
          .median = median(times_us),
          .mean = sum / static_cast<double>(n),
          .p95 = percentile(95),
          .p99 = percentile(99),
          .max = times_us.back()};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Result<std::vector<double>> exchange(Backend& backend, std::span<const double> mine) {
  std::vector<double> all(mine.size() * static_cast<size_t>(backend.size()));
  const CallShape shape{.collective = Collective::kAllGather,
                        .type = DataType::kFloat64,
                        .op = ReduceOp::kSum,
                        .root = 0,
                        .count = mine.size()};
  RONDO_TRY(backend.run({.shape = shape, .in = mine.data(), .out = all.data(), .measured = false}));
  return all;
}

Result<std::vector<double>> across_ranks(Backend& backend, std::span<const double> mine,
                                         AcrossRanks across) {
  const auto all = RONDO_TRY(exchange(backend, mine));
  const auto size = static_cast<std::ptrdiff_t>(mine.size());
  std::vector<double> result(all.begin(), all.begin() + size);  // rank 0's
  if (across == AcrossRanks::kFirst) return result;
  for (size_t i = mine.size(); i < all.size(); ++i) {
    double& one = result[i % mine.size()];
    const double other = all[i];
    one = across == AcrossRanks::kMean      ? one + other
          : across == AcrossRanks::kFastest ? std::min(one, other)
                                            : std::max(one, other);
  }
  if (across == AcrossRanks::kMean) {
    for (double& sum : result) sum /= backend.size();
  }
  return result;
}

Result<std::vector<double>> slowest_of(Backend& backend, std::span<const double> mine) {
  return across_ranks(backend, mine, AcrossRanks::kSlowest);
}

Result<size_t> choose_iterations(Backend& backend, const BackendCall& operation, double total_us) {
  for (size_t trial = 1;; trial *= 4) {
    auto mine = RONDO_TRY(time_batch(backend, operation, trial));
    const double mean = mine;
    auto slowest = RONDO_TRY(slowest_of(backend, {&mean, 1}));
    const double slowest_us = slowest.front();
    if (slowest_us * static_cast<double>(trial) < kEstimateUs) continue;
    return static_cast<size_t>(std::max(total_us / slowest_us, 1.0));
  }
}

BackendCall operation_on(const CallShape& shape, const Buffers& buffers, bool in_place, int rank,
                         int ranks) {
  BackendCall operation{.shape = shape, .in = buffers.in, .out = buffers.out, .in_place = in_place};
  if (!in_place || !reads(shape, rank) || !writes(shape, rank)) return operation;
  const internal::Form form = internal::form_of(shape.collective);
  const size_t block = own_block_begin(shape, rank, ranks) * size_of(shape.type);
  if (form.in == internal::Holds::kEach && form.out == internal::Holds::kOne) {
    operation.out = static_cast<std::byte*>(buffers.in) + block;
  } else if (form.in == internal::Holds::kOne && form.out == internal::Holds::kEach) {
    operation.in = static_cast<std::byte*>(buffers.out) + block;
  } else {
    operation.in = buffers.out;
  }
  return operation;
}

Result<double> time_batch(Backend& backend, const BackendCall& operation, size_t iterations) {
  RONDO_TRY(backend.barrier());
  return backend.time(operation, iterations);
}

Status expect(Backend& backend, const CallShape& shape, const Buffers& buffers) {
  if (buffers.expected == nullptr) return {};
  const int rank = backend.rank();
  const Pattern pattern(shape, backend.size());
  const size_t outputs = pattern.out_count(rank), element = size_of(shape.type);
  pattern.fill_output(rank, buffers.expected);
  pattern.fill_input(rank, static_cast<std::byte*>(buffers.expected) + outputs * element);
  return backend.give(buffers.expected, (outputs + pattern.in_count(rank)) * element);
}

Result<uint64_t> check(Backend& backend, const CallShape& shape, const Buffers& buffers,
                       bool in_place) {
  const int rank = backend.rank(), ranks = backend.size();
  const Pattern pattern(shape, ranks);
  const BackendCall operation = operation_on(shape, buffers, in_place, rank, ranks);
  // a result that was never written is zero, and no correct result is
  std::memset(buffers.in, 0, in_elements(shape, ranks) * size_of(shape.type));
  std::memset(buffers.out, 0, out_elements(shape, ranks) * size_of(shape.type));
  pattern.fill_input(rank, const_cast<void*>(operation.in));
  const size_t in_bytes = in_elements(shape, ranks) * size_of(shape.type);
  const size_t out_bytes = out_elements(shape, ranks) * size_of(shape.type);
  RONDO_TRY(backend.give(buffers.in, in_bytes));
  RONDO_TRY(backend.give(buffers.out, out_bytes));
  RONDO_TRY(backend.run(operation));
  auto wrong = RONDO_TRY(wrong_on_rank(backend, pattern, operation, buffers));
  const auto mine = static_cast<double>(wrong);
  auto all = RONDO_TRY(exchange(backend, {&mine, 1}));
  double sum = 0;
  for (double value : all) sum += value;
  return static_cast<uint64_t>(sum);
}

Result<Measured> measure(Backend& backend, const CallShape& shape, const Buffers& buffers,
                         const MeasureOptions& options) {
  Measured measured;
  std::vector<double> limits;
  if (options.checks > 0) RONDO_TRY(expect(backend, shape, buffers));
  for (const bool in_place : {false, true}) {
    if (in_place ? !options.in_place : !options.out_of_place) continue;
    if (in_place && !can_be_in_place(shape.collective)) continue;
    if (in_place && !backend.supports_in_place(shape)) continue;
    HalfRow half;
    for (size_t i = 0; i < options.checks && shape.collective != Collective::kBarrier; ++i) {
      auto wrong = RONDO_TRY(check(backend, shape, buffers, in_place));
      half.wrong = half.wrong.value_or(0) + wrong;
    }
    const BackendCall operation =
        operation_on(shape, buffers, in_place, backend.rank(), backend.size());
    auto timing = RONDO_TRY(time_shape(backend, operation, buffers, options));
    half.time_us = timing.time_us;
    auto spread =
        RONDO_TRY(time_singly(backend, operation, samples_for(timing.time_us, options.iterations)));
    half.spread = spread;
    if (timing.limit_us) limits.push_back(*timing.limit_us);
    (in_place ? measured.in_place : measured.out_of_place) = half;
  }
  if (!limits.empty()) measured.limit_us = median(limits);
  return measured;
}

}  // namespace rondo::bench
