// Checks and times one shape on one backend. Every rank calls the same function with the same
// arguments, its own buffers apart, and gets the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// Two buffers of one rank, each large enough for the larger side of every shape that is measured
/// with them.
struct Buffers {
  void* in;
  void* out;
  /// Room for both together, from the backend: where there is any, the backend compares results
  /// with it, where they are; else they are taken, and compared by the host.
  void* expected = nullptr;
};

struct MeasureOptions {
  size_t iterations = 0;  // timed operations; 0: as many as take about a tenth of a second
  size_t warmup = 5;      // operations before each timing
  size_t checks = 1;      // operations whose results are compared, 0: none
  bool out_of_place = true;
  bool in_place = true;
  /// Sizes above this are measured against streaming the same memory.
  size_t limit_from_bytes = SIZE_MAX;
};

/// Operations that were timed one by one, each by its slowest rank; microseconds. Percentiles are
/// nearest ranks: of fewer than 100 samples p99 is the maximum.
struct Spread {
  size_t samples;
  double min, median, mean, p95, p99, max;
};

struct Half {
  /// Per operation: the slowest rank's mean over a batch, median over the batches.
  double time_us = 0;
  std::optional<uint64_t> wrong;  // elements over all ranks; nothing when not checked
  std::optional<Spread> spread{};
};

struct Measured {
  std::optional<Half> out_of_place, in_place;
  std::optional<double> limit_us;
};

Result<Measured> measure(Backend& backend, const Shape& shape, const Buffers& buffers,
                         const MeasureOptions& options);

/// The operation on these buffers, in place or not.
Operation operation_on(const Shape& shape, const Buffers& buffers, bool in_place, int rank,
                       int ranks);

/// Fills Buffers::expected, where there is any: this rank's output, then its input. Once for all
/// checks of a shape.
Status expect(Backend& backend, const Shape& shape, const Buffers& buffers);

/// Fills, runs once and compares, input included where it must survive: wrong elements over all
/// ranks. REQUIRES: expect() for this shape.
Result<uint64_t> check(Backend& backend, const Shape& shape, const Buffers& buffers, bool in_place);

/// How many operations take about `total_us`, at least 1, from ever longer trials; the same on
/// every rank.
Result<size_t> choose_iterations(Backend& backend, const Operation& operation, double total_us);

/// At each position of `mine` the largest of all ranks' values there: the slowest rank of each
/// batch.
Result<std::vector<double>> slowest_of(Backend& backend, std::span<const double> mine);

/// Mean microseconds of `iterations` operations on this rank, after a barrier.
Result<double> time_batch(Backend& backend, const Operation& operation, size_t iterations);

/// Every rank's `mine`, concatenated in rank order, on every rank; through the backend itself.
Result<std::vector<double>> exchange(Backend& backend, std::span<const double> mine);

/// REQUIRES: not empty.
Spread spread_of(std::vector<double> times_us);

/// REQUIRES: not empty.
double median(std::vector<double> values);

}  // namespace rondo::bench
