// Every kernel of every instruction set that this CPU has equals the scalar reference in every bit,
// any NaN counting as equal to any other: types, operators, shapes, in place, counts, alignments,
// both kinds of store; and touches nothing else.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "kernels/host/targets.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::kernels {
namespace {

constexpr size_t kGuard = 64;
constexpr size_t kPoolBytes = 1 << 16;

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

std::vector<std::byte> pool(DataType type) {
  if (type == DataType::kFloat32) return floating_pool<float>();
  if (type == DataType::kFloat64) return floating_pool<double>();
  std::mt19937 random(7);
  // Any bits: integers, and 16-bit floats of all kinds.
  std::vector<uint16_t> patterns(kPoolBytes / 2);
  for (uint16_t& pattern : patterns) pattern = static_cast<uint16_t>(random());
  return bytes_of(patterns);
}

bool is_nan(DataType type, const std::byte* at) {
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
constexpr Placement kPlacements[] = {Placement::kAligned, Placement::kTogether, Placement::kApart,
                                     Placement::kOdd};

struct Case {
  DataType type;
  ReduceOp op;
  uint32_t sources, destinations;
  int in_place;  // the source that the last destination is; -1: none
  size_t count;
  Placement placement;
  uint32_t nontemporal;
  bool scaled = false;
};

// Different for every source, some that change nothing, and one that no type holds.
constexpr double kFactors[] = {0.5, -3, 1, 1.0 / 3, 1e9, 250, 0, -0.75, 0x1p63, 1e300};

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

  void run(MoveFunction function) {
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> destinations;
    for (size_t r = 0; r < offsets_.size(); ++r) {
      if (r < case_.sources) {
        sources.push_back(base() + offsets_[r]);
      } else {
        destinations.push_back(base() + offsets_[r]);
      }
    }
    // An average over another number of ranks than sources: the last step of a ring.
    const uint32_t divisor = case_.op == ReduceOp::kAvg ? case_.sources % 4 + 2 : 1;
    function({.sources = sources.data(),
              .destinations = destinations.data(),
              .source_count = case_.sources,
              .destination_count = case_.destinations,
              .count = case_.count,
              .divisor = divisor,
              .nontemporal = case_.nontemporal,
              .factors = case_.scaled ? kFactors : nullptr});
  }

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

// Runs one case on every instruction set; the reference once.
void check(const Case& c, const std::vector<std::byte>& values) {
  Arena expected(c, values);
  expected.run(scalar_move_function(c.type, c.op));
  for (const char* set : instruction_sets().first(instruction_sets().size() - 1)) {
    Arena actual(c, values);
    actual.run(move_function_for(set, c.type, c.op));
    const ptrdiff_t at = actual.difference(expected);
    if (at >= 0) {
      FAIL(set << " " << name(c.type) << " " << name(c.op) << " sources " << c.sources
               << " destinations " << c.destinations << " in place " << c.in_place << " count "
               << c.count << " placement " << static_cast<int>(c.placement) << " nontemporal "
               << c.nontemporal << " scaled " << c.scaled << ": differs at byte " << at
               << " of the arena");
    }
  }
  SUCCEED();  // counted
}

template <class Body>
void for_each_kernel(Body body) {
  for (int type = 0; type < kDataTypes; ++type) {
    const auto t = static_cast<DataType>(type);
    const std::vector<std::byte> values = pool(t);
    for (int op = 0; op < kReduceOps; ++op) {
      if (supports(t, static_cast<ReduceOp>(op))) body(t, static_cast<ReduceOp>(op), values);
    }
  }
}

// Counts round every step of the loops: elements of 16, 32 and 64 bytes' vectors and of blocks of
// them.
std::vector<size_t> edge_counts(DataType type) {
  std::vector<size_t> counts = {0, 1, 2, 3};
  for (const size_t bytes : {16, 32, 64, 128, 256, 512, 768}) {
    const size_t elements = bytes / size_of(type);
    counts.insert(counts.end(), {elements - 1, elements, elements + 1});
  }
  counts.push_back(997);
  return counts;
}

TEST_CASE("Vector kernels equal the reference in all shapes, in place on every source") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    uint32_t turn = 0;
    for (uint32_t k = 1; k <= 9; ++k) {
      for (uint32_t m = 1; m <= 3; ++m) {
        for (int in_place = -1; in_place < static_cast<int>(k); ++in_place) {
          const size_t count =
              700 / size_of(type) + (k + m + static_cast<uint32_t>(in_place + 1)) % 5;
          for (const Placement placement : kPlacements) {
            const uint32_t nontemporal = turn++ % (m + 1);  // the next test has all everywhere
            check({type, op, k, m, in_place, count, placement, nontemporal}, values);
          }
          ++turn;
        }
      }
    }
  });
}

TEST_CASE("Vector kernels equal the reference at every edge of count and alignment") {
  struct Shape {
    uint32_t sources, destinations;
    int in_place;
  };
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    for (const Shape& s :
         {Shape{1, 1, -1}, {1, 2, 0}, {2, 1, -1}, {2, 1, 1}, {2, 2, 0}, {3, 2, -1}}) {
      for (const size_t count : edge_counts(type)) {
        for (const Placement placement : kPlacements) {
          for (uint32_t nontemporal = 0; nontemporal <= s.destinations; ++nontemporal) {
            check({type, op, s.sources, s.destinations, s.in_place, count, placement, nontemporal},
                  values);
          }
        }
      }
    }
  });
}

TEST_CASE("Streaming equals the reference over many tiles") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (op != ReduceOp::kSum && op != ReduceOp::kMax && op != ReduceOp::kAvg) return;  // the same
    for (const Placement placement : kPlacements) {
      for (const uint32_t k : {1u, 2u, 3u}) {
        const uint32_t m = k == 2 ? 1 : 2;
        check({type, op, k, m, -1, 30'000 / size_of(type) + 5, placement, m}, values);
      }
    }
  });
}

TEST_CASE("Scaled sums equal the reference in all shapes, streamed and not") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (op != ReduceOp::kSum && op != ReduceOp::kAvg) return;
    for (uint32_t k = 1; k <= std::size(kFactors); ++k) {
      for (uint32_t m = 1; m <= 2; ++m) {
        for (const Placement placement : kPlacements) {
          for (uint32_t nontemporal = 0; nontemporal <= m; ++nontemporal) {
            const int in_place = static_cast<int>(k) - 1 - static_cast<int>(nontemporal);
            for (const size_t bytes : {17, 700}) {
              const size_t count = bytes / size_of(type) + k % 3;
              check({type, op, k, m, std::max(in_place, -1), count, placement, nontemporal, true},
                    values);
            }
          }
        }
      }
    }
  });
}

// Elementwise over patterns of a 16-bit or an 8-bit float: each instruction set against the
// reference.
template <class T>
void check_patterns(DataType type, ReduceOp op, const std::vector<T>& all,
                    const std::vector<T>& other) {
  std::vector<T> expected(all.size()), actual(all.size());
  const auto run = [&](MoveFunction function, std::vector<T>& result) {
    const std::byte* sources[] = {reinterpret_cast<const std::byte*>(all.data()),
                                  reinterpret_cast<const std::byte*>(other.data())};
    std::byte* destinations[] = {reinterpret_cast<std::byte*>(result.data())};
    function({.sources = sources,
              .destinations = destinations,
              .source_count = 2,
              .destination_count = 1,
              .count = all.size(),
              .divisor = op == ReduceOp::kAvg ? 3u : 1u,
              .nontemporal = 0});
  };
  run(scalar_move_function(type, op), expected);
  for (const char* set : instruction_sets()) {
    run(move_function_for(set, type, op), actual);
    size_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      const auto* a = reinterpret_cast<const std::byte*>(&actual[i]);
      const auto* e = reinterpret_cast<const std::byte*>(&expected[i]);
      wrong += !is_nan(type, a) || !is_nan(type, e);
    }
    INFO(set << " " << name(type) << " " << name(op) << " with pattern " << int{other[0]});
    CHECK(wrong == 0);
  }
}

// Sums and products of every 16-bit pattern with values that reach ties, denormals and overflow, and
// with NaNs, whose payloads must not round to something else.
TEST_CASE("16-bit floats round as the reference does, for every pattern") {
  constexpr size_t kPatterns = 65536;
  std::vector<uint16_t> all(kPatterns), other(kPatterns);
  for (size_t i = 0; i < kPatterns; ++i) all[i] = static_cast<uint16_t>(i);
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    const auto from_float = type == DataType::kFloat16 ? half_from_float : bfloat16_from_float;
    std::vector<uint16_t> others = {0x7fff, 0xffff, 0x7f81, 0x7c01};
    for (const float value : {-0.0f, 1.0f, 0.5f, 0.25f, 0.75f, -1.5f, 3.0f, 0x1p-10f, 0x1p-12f,
                              0x1.8p-14f, 0x1p-24f, 100.0f, 32768.0f, 0x1p-100f, 0x1p100f}) {
      others.push_back(from_float(value));
    }
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
      for (const uint16_t pattern : others) {
        std::fill(other.begin(), other.end(), pattern);
        check_patterns(type, op, all, other);
      }
    }
  }
}

TEST_CASE("fp8 rounds as the reference does, for every pair of patterns") {
  std::vector<uint8_t> all(256), other(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  for (const DataType type : {DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
      for (const uint8_t pattern : all) {
        std::fill(other.begin(), other.end(), pattern);
        check_patterns(type, op, all, other);
      }
    }
  }
}

// A factor that is a NaN with all bits set must not carry a bfloat16's NaN into another value.
TEST_CASE("A factor that is NaN makes NaN in every floating type") {
  double factors[] = {std::bit_cast<double>(~uint64_t{0})};
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16,
                              DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    const std::vector<std::byte> source(64 * size_of(type));
    std::vector<std::byte> result(source.size());
    const std::byte* sources[] = {source.data()};
    std::byte* destinations[] = {result.data()};
    for (const char* set : instruction_sets()) {
      std::fill(result.begin(), result.end(), std::byte{});
      move_function_for(set, type, ReduceOp::kSum)({.sources = sources,
                                                    .destinations = destinations,
                                                    .source_count = 1,
                                                    .destination_count = 1,
                                                    .count = 64,
                                                    .divisor = 1,
                                                    .nontemporal = 0,
                                                    .factors = factors});
      size_t others = 0;
      for (size_t i = 0; i < 64; ++i) others += !is_nan(type, result.data() + i * size_of(type));
      INFO(set << " " << name(type));
      CHECK(others == 0);
    }
  }
}

}  // namespace
}  // namespace rondo::kernels
