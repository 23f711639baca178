// The harness's interface to a library of collectives: rondo or one of its peers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>

#include "bench/harness/mismatch.hpp"
#include "bench/harness/shape.hpp"
#include "rondo/status.hpp"

namespace rondo::bench {

/// One call. `in == out` and the offsets of rondo/communicator.hpp mean in place.
struct BackendCall {
  CallShape shape;
  const void* in;
  void* out;
  bool measured = true;   // false: the harness's own, done in any way
  bool in_place = false;  // as requested, the same on all ranks: only a broadcast's root is
};

/// How a library would do an operation, if it can tell.
struct Prediction {
  std::string algorithm;
  double time_us;
  std::optional<double> library_us{};  // rondo on plain memory: the time on library memory
};

/// Memory per rank that the library needs to communicate, without buffers and memory that it
/// allocates for the caller.
struct MemoryUse {
  size_t shared_bytes;   // its part of the shared memory, touched or not
  size_t private_bytes;  // of its process only
};

/// Not thread-safe: one rank, one thread. Every rank issues the same operations in the same order.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// ok if the library has this collective for this type and operator; otherwise kUnavailable,
  /// naming what it lacks.
  virtual Status supports(const CallShape& shape) const = 0;
  /// Whether the library can do it in place.
  virtual bool supports_in_place(const CallShape&) const { return true; }
  virtual Status run(const BackendCall& operation) = 0;
  virtual Status barrier() = 0;
  /// Makes every pending and later call of every rank fail with this reason, if the library can.
  /// Any thread may call it.
  virtual void abort(const std::string&) {}

  /// Mean microseconds of a number of consecutive operations on this rank, by the steady clock
  /// unless the library has a better one.
  virtual Result<double> time(const BackendCall& operation, size_t iterations) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < iterations; ++i) RONDO_TRY(run(operation));
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(iterations);
  }

  /// For a library whose buffers are elsewhere, both for memory of allocate(): the library reads
  /// what was last given to it, and its output is visible once it has been taken.
  virtual bool is_on_host() const { return true; }
  virtual Status give(const void*, size_t) { return {}; }
  virtual Status take(void*, size_t) { return {}; }
  /// Compares elements, both in memory of allocate(), where the library has them. REQUIRES: count >
  /// 0.
  virtual Result<Mismatch> compare(const void* found, const void* expected, size_t count,
                                   DataType type) {
    return mismatch_of(found, expected, count, size_of(type));
  }

  virtual std::optional<Prediction> predict(const CallShape&) const { return std::nullopt; }
  virtual std::optional<MemoryUse> memory() const { return std::nullopt; }
  /// rondo only: the source of its link profile, for the heading.
  virtual std::string links() const { return {}; }

  /// Memory to measure with; null when exhausted. malloc unless the library has its own.
  virtual void* allocate(size_t bytes) { return std::malloc(bytes); }
  virtual void release(void* memory) { std::free(memory); }
};

}  // namespace rondo::bench
