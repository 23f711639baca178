// Moves for tests: values of every kind, operands at every alignment, the reference's result beside
// another's, and everything that neither may touch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "kernels/reduce.hpp"

namespace rondo::kernels::test {

inline constexpr size_t kGuard = 64;
inline constexpr size_t kPoolBytes = 1 << 16;

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Ordinary values, and one in eight that is not.
template <class T>
std::vector<std::byte> floating_pool() {
  using Limits = std::numeric_limits<T>;
  const T special[] = {Limits::quiet_NaN(),
                       -Limits::quiet_NaN(),
                       Limits::infinity(),
                       -Limits::infinity(),
                       T(0.0),
                       T(-0.0),
                       Limits::max(),
                       Limits::lowest(),
                       Limits::min(),
                       -Limits::min(),
                       Limits::denorm_min(),
                       -Limits::denorm_min(),
                       T(-0.0),
                       T(0.0),
                       Limits::min() / 3};
  std::mt19937 random(7);
  std::vector<T> values(kPoolBytes / sizeof(T));
  for (T& value : values) {
    value = random() % 8 == 0 ? special[random() % std::size(special)]
                              : static_cast<T>(static_cast<int32_t>(random())) / T(1 << 20) / 3;
  }
  return bytes_of(values);
}

inline std::vector<std::byte> any_bits() {
  std::mt19937 random(7);
  std::vector<uint16_t> patterns(kPoolBytes / 2);
  for (uint16_t& pattern : patterns) pattern = static_cast<uint16_t>(random());
  return bytes_of(patterns);
}

/// Made once: under sanitizers that takes longer than most of what is done with it.
inline const std::vector<std::byte>& pool(DataType type) {
  static const std::vector<std::byte> floats = floating_pool<float>();
  static const std::vector<std::byte> doubles = floating_pool<double>();
  static const std::vector<std::byte> bits = any_bits();  // integers, and small floats of all kinds
  if (type == DataType::kFloat32) return floats;
  return type == DataType::kFloat64 ? doubles : bits;
}

inline bool is_nan(DataType type, const std::byte* at) {
  const auto load = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (type) {
    case DataType::kFloat32:
      return std::isnan(load(float{}));
    case DataType::kFloat64:
      return std::isnan(load(double{}));
    case DataType::kFloat16:
      return std::isnan(float_from_half(load(uint16_t{})));
    case DataType::kBFloat16:
      return std::isnan(float_from_bfloat16(load(uint16_t{})));
    case DataType::kFloat8E4M3:
      return std::isnan(float_from_e4m3(load(uint8_t{})));
    case DataType::kFloat8E5M2:
      return std::isnan(float_from_e5m2(load(uint8_t{})));
    default:
      return false;
  }
}

// Where a region starts within a cache line.
enum class Placement {
  kAligned,
  kTogether,  // all destinations at the same element of a line
  kApart,     // every region at another element
  kOdd,       // every region at another byte
};
inline constexpr Placement kPlacements[] = {Placement::kAligned, Placement::kTogether,
                                            Placement::kApart, Placement::kOdd};

struct Case {
  DataType type;
  ReduceOp op;
  uint32_t sources, destinations;
  int in_place;  // the source that the last destination is; -1: none
  size_t count;
  Placement placement;
  uint32_t nontemporal;
  bool scaled = false, divided = false;
};

inline std::string describe(const Case& c) {
  return std::string(name(c.type)) + " " + std::string(name(c.op)) + " sources " +
         std::to_string(c.sources) + " destinations " + std::to_string(c.destinations) +
         " in place " + std::to_string(c.in_place) + " count " + std::to_string(c.count) +
         " placement " + std::to_string(static_cast<int>(c.placement)) + " nontemporal " +
         std::to_string(c.nontemporal) + " scaled " + std::to_string(c.scaled) + " divided " +
         std::to_string(c.divided);
}

// Different for every source, some that change nothing, and one that no type holds.
inline constexpr double kFactors[] = {0.5, -3, 1, 1.0 / 3, 1e9, 250, 0, -0.75, 0x1p63, 1e300};

// One memory for all regions of a case, run once by the reference and once by the kernel under
// test, then compared whole: results, sources and the bytes between them.
class Arena {
 public:
  Arena(const Case& c, const std::vector<std::byte>& values) : case_(c) {
    const size_t element = size_of(c.type), bytes = c.count * element;
    const size_t regions = c.sources + c.destinations;
    const size_t stride = (bytes + 2 * kGuard + 63) / 64 * 64 + 64;
    memory_.assign(regions * stride + 64, std::byte{0xa5});
    for (size_t r = 0; r < regions; ++r) {
      size_t shift = 0;
      if (c.placement == Placement::kTogether) shift = 3 * element;
      if (c.placement == Placement::kApart) shift = (r * 5 + 1) * element % 64;
      if (c.placement == Placement::kOdd) shift = (r * 3 + 1) % 8;
      offsets_.push_back(r * stride + kGuard + shift);
      if (r >= c.sources) continue;
      for (size_t done = 0; done < bytes;) {
        const size_t from = (r * 7919 + c.count) * element % (kPoolBytes / 2);
        const size_t now = std::min(bytes - done, kPoolBytes / 2);
        std::memcpy(base() + offsets_[r] + done, values.data() + from, now);
        done += now;
      }
    }
    if (c.in_place >= 0) offsets_.back() = offsets_[static_cast<size_t>(c.in_place)];
  }

  /// function(const Move&), on this memory, or on a copy of bytes() that begins at `base`.
  template <class Function>
  void run(const Function& function) {
    run_at(base(), function);
  }
  template <class Function>
  void run_at(std::byte* base, const Function& function) const {
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> destinations;
    for (size_t r = 0; r < offsets_.size(); ++r) {
      if (r < case_.sources) {
        sources.push_back(base + offsets_[r]);
      } else {
        destinations.push_back(base + offsets_[r]);
      }
    }
    // An average over another number of ranks than sources: the last step of a ring.
    const bool divided = case_.op == ReduceOp::kAvg || case_.divided;
    const uint32_t divisor = divided ? case_.sources % 4 + 2 : 1;
    function(Move{.sources = sources.data(),
                  .destinations = destinations.data(),
                  .source_count = case_.sources,
                  .destination_count = case_.destinations,
                  .count = case_.count,
                  .divisor = divisor,
                  .nontemporal = case_.nontemporal,
                  .factors = case_.scaled ? kFactors : nullptr});
  }

  /// The whole memory, aligned to 64 bytes.
  std::span<std::byte> bytes() { return {base(), memory_.size() - 64}; }

  // Where the two first differ, or -1.
  ptrdiff_t difference(const Arena& other) const {
    const size_t size = memory_.size() - 64;
    if (std::memcmp(base(), other.base(), size) == 0) return -1;
    std::vector<bool> excused(size);
    const size_t element = size_of(case_.type);
    for (size_t r = case_.sources; r < offsets_.size(); ++r) {
      for (size_t i = 0; i < case_.count; ++i) {
        const size_t at = offsets_[r] + i * element;
        if (!is_nan(case_.type, base() + at) || !is_nan(case_.type, other.base() + at)) continue;
        for (size_t b = 0; b < element; ++b) excused[at + b] = true;
      }
    }
    for (size_t i = 0; i < size; ++i) {
      if (base()[i] != other.base()[i] && !excused[i]) return static_cast<ptrdiff_t>(i);
    }
    return -1;
  }

 private:
  std::byte* base() { return memory_.data() + -reinterpret_cast<uintptr_t>(memory_.data()) % 64; }
  const std::byte* base() const { return const_cast<Arena*>(this)->base(); }

  Case case_;
  std::vector<std::byte> memory_;
  std::vector<size_t> offsets_;
};

/// How fold_into() folds.
struct FoldOptions {
  size_t count = 1;
  uint32_t divisor = 1;
  const double* factors = nullptr;
};

/// Calls function(const Move&) for these sources and one destination.
template <class Function>
void fold_into(std::byte* to, const std::vector<const std::byte*>& sources,
               const Function& function, const FoldOptions& how = {}) {
  function(Move{.sources = sources.data(),
                .destinations = &to,
                .source_count = static_cast<uint32_t>(sources.size()),
                .destination_count = 1,
                .count = how.count,
                .divisor = how.divisor,
                .nontemporal = 0,
                .factors = how.factors});
}

// Differing elements, where not both are NaN.
inline size_t wrong_elements(DataType type, const std::vector<std::byte>& actual,
                             const std::vector<std::byte>& expected) {
  const std::byte *a = actual.data(), *e = expected.data();
  const size_t element = size_of(type);
  size_t wrong = 0;
  for (size_t at = 0; at < expected.size(); at += element) {
    if (std::equal(a + at, a + at + element, e + at)) continue;
    wrong += !is_nan(type, a + at) || !is_nan(type, e + at);
  }
  return wrong;
}

/// Two sources of a fold of floats below 32 bits.
struct SmallOperands {
  std::vector<std::byte> first, second;

  /// The result; averages are divided by three.
  template <class Function>
  std::vector<std::byte> fold(DataType type, ReduceOp op, const Function& function) const {
    std::vector<std::byte> result(first.size());
    fold_into(result.data(), {first.data(), second.data()}, function,
              {.count = first.size() / size_of(type), .divisor = op == ReduceOp::kAvg ? 3u : 1u});
    return result;
  }
};

/// Every pair of patterns of an fp8. Every pattern of a 16-bit float with values that reach ties,
/// denormals and overflow, and with NaNs, whose payloads must not round to something else.
inline std::vector<SmallOperands> every_pattern(DataType type) {
  std::vector<SmallOperands> operands;
  if (size_of(type) == 1) {
    SmallOperands& pairs = operands.emplace_back();
    for (int pair = 0; pair < 65536; ++pair) {
      pairs.first.push_back(static_cast<std::byte>(pair));
      pairs.second.push_back(static_cast<std::byte>(pair >> 8));
    }
    return operands;
  }
  std::vector<uint16_t> every(65536), others = {0x7fff, 0xffff, 0x7f81, 0x7c01, 0x4321};
  std::iota(every.begin(), every.end(), 0);
  const auto from_float = type == DataType::kFloat16 ? half_from_float : bfloat16_from_float;
  for (const float value : {-0.0f, 1.0f, 0.5f, 0.25f, 0.75f, -1.5f, 3.0f, 0x1p-10f, 0x1p-12f,
                            0x1.8p-14f, 0x1p-24f, 100.0f, 32768.0f, 0x1p-100f, 0x1p100f}) {
    others.push_back(from_float(value));
  }
  for (const uint16_t other : others) {
    operands.push_back({bytes_of(every), bytes_of(std::vector<uint16_t>(every.size(), other))});
  }
  return operands;
}

/// Calls body(type, op, operands) for all of them.
template <class Body>
void for_each_pattern(std::initializer_list<DataType> types, Body body) {
  for (const DataType type : types) {
    for (const SmallOperands& operands : every_pattern(type)) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
        body(type, op, operands);
      }
    }
  }
}

/// Calls body(type, op) for all that there are.
template <class Body>
void for_each_type_and_op(Body body) {
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      body(static_cast<DataType>(type), static_cast<ReduceOp>(op));
    }
  }
}

/// Calls body(type, op, values) for all that have a kernel.
template <class Body>
void for_each_kernel(Body body) {
  for_each_type_and_op([&](DataType type, ReduceOp op) {
    if (supports(type, op)) body(type, op, pool(type));
  });
}

// Counts round every step of the loops: elements of 16, 32 and 64 bytes' vectors and of blocks of
// them.
inline std::vector<size_t> edge_counts(DataType type) {
  std::vector<size_t> counts = {0, 1, 2, 3};
  for (const size_t bytes : {16, 32, 64, 128, 256, 512, 768}) {
    const size_t elements = bytes / size_of(type);
    counts.insert(counts.end(), {elements - 1, elements, elements + 1});
  }
  counts.push_back(997);
  return counts;
}

/// Calls body(case, values) for these numbers of sources and 1 to 3 destinations, in place on every
/// source.
template <class Body>
void for_each_shape(const std::vector<uint32_t>& sources, Body body) {
  for_each_kernel([&](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    for (const uint32_t k : sources) {
      for (uint32_t m = 1; m <= 3; ++m) {
        for (int in_place = -1; in_place < static_cast<int>(k); ++in_place) {
          const size_t count =
              700 / size_of(type) + (k + m + static_cast<uint32_t>(in_place + 1)) % 5;
          for (const Placement placement : kPlacements) {
            body(Case{type, op, k, m, in_place, count, placement, 0}, values);
          }
        }
      }
    }
  });
}

/// Calls body(case, values) for every edge of count and alignment.
template <class Body>
void for_each_edge(Body body) {
  for_each_kernel([&](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    for (const size_t count : edge_counts(type)) {
      for (const Placement placement : kPlacements) {
        body(Case{type, op, 1, 2, 0, count, placement, 0}, values);
        body(Case{type, op, 2, 1, -1, count, placement, 0}, values);
        body(Case{type, op, 3, 2, 1, count, placement, 0}, values);
      }
    }
  });
}

/// Calls body(case, values) for sums with factors, with a divisor, and with both.
template <class Body>
void for_each_rare_sum(Body body) {
  for_each_kernel([&](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (op != ReduceOp::kSum && op != ReduceOp::kMulSum) return;
    for (uint32_t k = 1; k <= std::size(kFactors); ++k) {
      for (const Placement placement : kPlacements) {
        Case c{type, op, k, 2, -1, 700 / size_of(type) + k % 3, placement, 0, true};
        body(c, values);
        if (type == DataType::kBool || op != ReduceOp::kSum) continue;
        c.divided = true;
        body(c, values);
        c.scaled = false;
        body(c, values);
      }
    }
  });
}

}  // namespace rondo::kernels::test
