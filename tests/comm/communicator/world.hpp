// Ranks with a communicator each, closed-form data, and its exact results: the frame of the
// communicator's tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"

namespace rondo::testing {

constexpr int kSkipped = 77;  // the exit status that CTest shows as skipped

/// TSan sees threads; it has no use for processes.
#if defined(__SANITIZE_THREAD__)
inline const std::vector<How> kHows{How::kThreads};
#else
inline const std::vector<How> kHows{How::kThreads, How::kForks};
#endif

inline std::string how_name(How how) { return how == How::kThreads ? "threads" : "processes"; }

/// Numbers of ranks; sanitized builds go as far as the third.
inline std::vector<int> sizes(std::vector<int> all) {
  if (kSanitized) all.resize(std::min<size_t>(all.size(), 3));
  return all;
}

/// `config` completed for one rank of a world that meets in `directory`.
inline Config world_config(const std::string& directory, int rank, int size, Config config = {}) {
  config.rank = rank;
  config.world_size = size;
  config.rendezvous = directory;
  if (config.timeout == Config{}.timeout) config.timeout = std::chrono::seconds{30};
  config.bootstrap_timeout = std::chrono::seconds{30};
  return config;
}

inline void expect_ok(const Status& status, const std::string& what) {
  expect(status.ok(), what + ": " + status.to_string());
}

/// Runs body(communicator) on `size` ranks.
inline std::vector<RankResult> run_world(How how, int size,
                                         const std::function<void(Communicator&)>& body,
                                         const Config& config = {},
                                         std::chrono::seconds limit = std::chrono::seconds{100}) {
  const TempDirectory directory;
  return run_ranks(
      how, size,
      [&](int rank) {
        auto made = Communicator::create(world_config(directory.path(), rank, size, config));
        expect(made.ok(), "create: " + made.status().to_string());
        body(*made);
      },
      limit);
}

/// Memory of either kind, with guard bytes in front and behind and any misalignment.
class Buffer {
 public:
  Buffer(size_t bytes, bool library, size_t misalignment = 0)
      : bytes_(bytes), library_(library), misalignment_(misalignment) {
    const size_t all = bytes + misalignment + 2 * kGuard;
    base_ = static_cast<unsigned char*>(library ? alloc(all) : std::malloc(all));
    expect(base_ != nullptr, "no memory");
    std::memset(base_, kFill, all);
  }
  ~Buffer() {
    if (library_) {
      rondo::free(base_);
    } else {
      std::free(base_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  unsigned char* data() { return base_ + kGuard + misalignment_; }
  size_t bytes() const { return bytes_; }
  void check_guards(const std::string& what) const {
    for (size_t i = 0; i < kGuard; ++i) {
      expect(base_[i] == kFill && base_[kGuard + misalignment_ + bytes_ + i] == kFill,
             what + ": wrote outside the buffer");
    }
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kFill = 0xa5;
  size_t bytes_;
  bool library_;
  size_t misalignment_;
  unsigned char* base_;
};

/// The small integer that `rank` contributes at element i; different enough between ranks and
/// elements that a missing, doubled or misplaced contribution changes the result, small enough for
/// every type and operator to be exact.
inline int contribution(int rank, size_t i, ReduceOp op) {
  if (op == ReduceOp::kProd) return (i + static_cast<size_t>(rank)) % 3 == 0 ? 2 : 1;
  return static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3 + i / 13) % 11) + rank % 3;
}

inline double expected(int size, size_t i, ReduceOp op, DataType type) {
  double value = contribution(0, i, op);
  for (int rank = 1; rank < size; ++rank) {
    const double next = contribution(rank, i, op);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kScaledSum:  // with a factor of 1
      case ReduceOp::kAvg:
        value += next;
        break;
      case ReduceOp::kProd:
        value *= next;
        break;
      case ReduceOp::kMin:
        value = std::min(value, next);
        break;
      case ReduceOp::kMax:
        value = std::max(value, next);
        break;
      case ReduceOp::kBand:
        value = static_cast<int>(value) & static_cast<int>(next);
        break;
      case ReduceOp::kBor:
        value = static_cast<int>(value) | static_cast<int>(next);
        break;
      case ReduceOp::kBxor:
        value = static_cast<int>(value) ^ static_cast<int>(next);
        break;
    }
  }
  if (op != ReduceOp::kAvg) return value;
  value /= size;
  return is_floating(type) ? value : std::trunc(value);
}

inline void store(unsigned char* at, DataType type, double value) {
  const auto put = [&](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (type) {
    case DataType::kFloat32:
      return put(static_cast<float>(value));
    case DataType::kFloat64:
      return put(value);
    case DataType::kFloat16:
      return put(kernels::half_from_float(static_cast<float>(value)));
    case DataType::kBFloat16:
      return put(kernels::bfloat16_from_float(static_cast<float>(value)));
    case DataType::kInt32:
      return put(static_cast<int32_t>(value));
    case DataType::kInt64:
      return put(static_cast<int64_t>(value));
    case DataType::kUint8:
      return put(static_cast<uint8_t>(value));
    case DataType::kInt8:
      return put(static_cast<int8_t>(value));
    case DataType::kInt16:
      return put(static_cast<int16_t>(value));
    case DataType::kUint16:
      return put(static_cast<uint16_t>(value));
    case DataType::kUint32:
      return put(static_cast<uint32_t>(value));
    case DataType::kUint64:
      return put(static_cast<uint64_t>(value));
    case DataType::kBool:
      return put(static_cast<uint8_t>(value != 0));
    case DataType::kFloat8E4M3:
      return put(kernels::e4m3_from_float(static_cast<float>(value)));
    case DataType::kFloat8E5M2:
      return put(kernels::e5m2_from_float(static_cast<float>(value)));
  }
}

inline void fill(Buffer& buffer, size_t from, size_t count, DataType type, ReduceOp op, int rank,
                 size_t first = 0) {
  const size_t size = size_of(type);
  for (size_t i = 0; i < count; ++i)
    store(buffer.data() + (from + i) * size, type, contribution(rank, first + i, op));
}

/// Element by element and bit by bit.
inline void check(Buffer& buffer, size_t from, size_t count, DataType type,
                  const std::function<double(size_t)>& value, const std::string& what) {
  const size_t size = size_of(type);
  for (size_t i = 0; i < count; ++i) {
    unsigned char wanted[8] = {};
    store(wanted, type, value(i));
    if (std::memcmp(wanted, buffer.data() + (from + i) * size, size) != 0) {
      expect(false, what + ": element " + std::to_string(from + i) + " is wrong");
    }
  }
  buffer.check_guards(what);
}

}  // namespace rondo::testing
