// Checks and times one shape on one backend. Every rank calls the same function with the same
// arguments, except its own buffers, and gets the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// Two buffers of one rank, each large enough for the larger side of every shape measured with
/// them.
struct Buffers {
  void* in;
  void* out;
  /// Room for both together, from the backend: with it the backend compares results itself; without
  /// it results are taken and compared by the host.
  void* expected = nullptr;
};

/// What becomes of the ranks' times of one batch, in the order of nccl-tests' -a.
enum class AcrossRanks { kFirst, kMean, kFastest, kSlowest };
inline constexpr std::string_view kTimeOf[] = {"rank 0's", "the mean over the ranks",
                                               "the fastest rank's", "the slowest rank's"};

struct MeasureOptions {
  size_t iterations = 0;  // timed operations; 0: about a tenth of a second of them
  size_t warmup = 5;      // operations before each timing
  size_t checks = 1;      // operations whose results are compared
  AcrossRanks across = AcrossRanks::kSlowest;
  bool out_of_place = true;
  bool in_place = true;
  /// Sizes above this are compared with streaming the same memory.
  size_t limit_from_bytes = SIZE_MAX;
};

/// Operations timed one by one, each by its slowest rank; microseconds. Percentiles are nearest
/// ranks: of fewer than 100 samples p99 is the maximum.
struct Spread {
  size_t samples;
  double min, median, mean, p95, p99, max;
};

struct HalfRow {
  /// Per operation: a rank's mean over a batch, MeasureOptions::across the ranks; median over the
  /// batches.
  double time_us = 0;
  std::optional<uint64_t> wrong;  // elements over all ranks; nothing when not checked
  std::optional<Spread> spread{};
};

struct Measured {
  std::optional<HalfRow> out_of_place, in_place;
  std::optional<double> limit_us;
};

Result<Measured> measure(Backend& backend, const CallShape& shape, const Buffers& buffers,
                         const MeasureOptions& options);

/// The operation on these buffers, in place or not.
BackendCall operation_on(const CallShape& shape, const Buffers& buffers, bool in_place, int rank,
                         int ranks);

/// Fills Buffers::expected, if present, with this rank's output, then its input. Once for all
/// checks of a shape.
Status expect(Backend& backend, const CallShape& shape, const Buffers& buffers);

/// Fills the buffers, runs once and compares, including the input where it must survive. Returns
/// wrong elements over all ranks. REQUIRES: expect() for this shape.
Result<uint64_t> check(Backend& backend, const CallShape& shape, const Buffers& buffers,
                       bool in_place);

/// The number of operations that take about `total_us`, at least 1, from ever longer trials; the
/// same on every rank.
Result<size_t> choose_iterations(Backend& backend, const BackendCall& operation, double total_us);

/// At each position of `mine`, of one batch each, the times of all ranks as one.
Result<std::vector<double>> across_ranks(Backend& backend, std::span<const double> mine,
                                         AcrossRanks across);
/// The maximum over all ranks at each position of `mine`: the slowest rank of each batch.
Result<std::vector<double>> slowest_of(Backend& backend, std::span<const double> mine);

/// Mean microseconds of `iterations` operations on this rank, after a barrier.
Result<double> time_batch(Backend& backend, const BackendCall& operation, size_t iterations);

/// All ranks' `mine`, concatenated in rank order, on every rank; exchanged through the backend.
Result<std::vector<double>> exchange(Backend& backend, std::span<const double> mine);

/// REQUIRES: not empty.
Spread spread_of(std::vector<double> times_us);

/// REQUIRES: not empty.
double median(std::vector<double> values);

}  // namespace rondo::bench
