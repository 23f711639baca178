// The one door from the harness to a library that does collectives: rondo or one of its peers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "bench/harness/mismatch.hpp"
#include "bench/harness/shape.hpp"
#include "rondo/status.hpp"

namespace rondo::bench {

/// One call. `in == out` and the offsets of rondo/communicator.hpp mean in place.
struct Operation {
  Shape shape;
  const void* in;
  void* out;
  bool measured = true;   // false: the harness' own, to be done in any way
  bool in_place = false;  // as it was asked for, alike on all ranks: a broadcast's root alone is
};

/// What a library says that it would do, where it can say.
struct Prediction {
  std::string algorithm;
  double time_us;
};

/// What the library's ranks take in memory to be able to communicate, per rank. Buffers and memory
/// that the library hands out do not count.
struct MemoryUse {
  size_t shared_bytes;   // its part of what ranks share, touched or not
  size_t private_bytes;  // of its process alone
};

/// Not thread-safe: one rank, one thread. Every rank issues the same operations in the same order.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// ok if the library has this collective for this type and operator; otherwise kUnavailable,
  /// naming what is missing.
  virtual Status supports(const Shape& shape) const = 0;
  /// Whether it can do so in place.
  virtual bool supports_in_place(const Shape&) const { return true; }
  virtual Status run(const Operation& operation) = 0;
  virtual Status barrier() = 0;

  /// Mean microseconds of so many operations in a row on this rank. By the clock, unless the
  /// library has a better one.
  virtual Result<double> time(const Operation& operation, size_t iterations);

  /// Of a library whose buffers are elsewhere: what it reads is what it was given last, and what it
  /// has written can be seen when it was taken. Both are about memory of allocate().
  virtual bool is_on_host() const { return true; }
  virtual Status give(const void*, size_t) { return {}; }
  virtual Status take(void*, size_t) { return {}; }
  /// Holds elements against others, both in memory of allocate(), and both where the library has
  /// them. REQUIRES: count > 0.
  virtual Result<Mismatch> compare(const void* found, const void* expected, size_t count,
                                   DataType type) {
    return mismatch_of(found, expected, count, size_of(type));
  }

  virtual std::optional<Prediction> predict(const Shape&) const { return std::nullopt; }
  virtual std::optional<MemoryUse> memory() const { return std::nullopt; }

  /// The memory to measure with; null when there is none. malloc unless the library has memory of
  /// its own to offer.
  virtual void* allocate(size_t bytes);
  virtual void release(void* memory);
};

}  // namespace rondo::bench
