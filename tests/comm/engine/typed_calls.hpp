// All-reduces and all-gathers of any type for tests of the device engine: by algorithms that fold
// all ranks' elements at once, in rank order, so that the bits to come are the scalar reference's.
// Buffers may begin anywhere.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/comm/device/device_calls.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::engine::test {

inline constexpr size_t kAreaBytes = 192;  // of LL, small: little data fills it

struct TypedCase {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kOneShot;
  Protocol protocol = Protocol::kLl;
  DataType type = DataType::kUint32;
  ReduceOp op = ReduceOp::kSum;
  size_t count = 1;
  size_t shift = 0;  // where buffers begin, from an address aligned to 256 on a device
  bool in_place = false;
  size_t seed = 0;
  size_t area_bytes = kAreaBytes;     // by LL
  schedule::Limits limits = kLimits;  // by slots; element_bytes is the type's
  uint64_t fingerprint = 1;
  uint64_t limit_ns = ~uint64_t{0};
};

inline std::string describe(const TypedCase& c) {
  return std::string(name(c.algorithm)) + (c.protocol == Protocol::kLl ? " LL " : " ") +
         std::string(name(c.collective)) + " " + std::string(name(c.type)) + " " +
         std::string(name(c.op)) + " count " + std::to_string(c.count) + " shift " +
         std::to_string(c.shift) + " in place " + std::to_string(c.in_place) + " seed " +
         std::to_string(c.seed);
}

/// A factor that is exact in every type.
inline double typed_factor(size_t rank) { return static_cast<double>(rank) * 0.75 - 1.5; }

/// One operation of all ranks with its buffers, and what is to be in them at the end.
class TypedCall {
 public:
  TypedCall(const TypedCase& c, uint32_t ranks) : case_(c), ranks_(ranks) {
    const size_t element = size_of(c.type);
    schedule::Limits limits = c.limits;
    limits.element_bytes = element;
    if (c.protocol == Protocol::kLl) limits = ll_limits(element, c.limits.channels, c.area_bytes);
    operation_ = schedule::test::operation({.collective = c.collective,
                                            .algorithm = c.algorithm,
                                            .ranks = static_cast<int>(ranks),
                                            .in_place = c.in_place,
                                            .count = c.count},
                                           limits);
    for (const schedule::Program& program : operation_.programs) {
      if (c.protocol != Protocol::kLl) break;
      REQUIRE(algorithms::may_go_by_ll(c.collective, c.algorithm));
      REQUIRE(fits_ll(program, element, c.area_bytes));
    }
    bytes_ = c.count * element;
    out_ = (bytes_ + kGuardBytes + 255) / 256 * 256;
    const std::vector<std::byte>& values = kernels::test::pool(c.type);
    for (uint32_t r = 0; r < ranks; ++r) {
      // In, a guard, Out, a guard.
      const size_t size = c.shift + out_ + (gathers() ? ranks : 1) * bytes_ + kGuardBytes;
      memory_.emplace_back(size, std::byte{0xa5});
      const size_t from = (r * 7919 + c.seed * 104729) * element % (values.size() / 2);
      for (size_t done = 0; done < bytes_;) {
        const size_t now = std::min(bytes_ - done, values.size() / 2);
        std::memcpy(in(r) + done, values.data() + from, now);
        done += now;
      }
    }
    expect();
  }

  std::vector<Launch> launches() {
    std::vector<Launch> all;
    for (uint32_t r = 0; r < ranks_; ++r) {
      const schedule::Program& program = operation_.programs[r];
      all.push_back(
          {{.program = {.instructions = program.instructions.data(),
                        .operands = program.operands.data(),
                        .instruction_count = static_cast<uint32_t>(program.instructions.size()),
                        .operand_count = static_cast<uint32_t>(program.operands.size())},
            .geometries = program.channels.data(),
            .in = in(r),
            .out = out(r),
            .type = case_.type,
            .op = case_.op,
            .protocol = case_.protocol,
            .direct = is_direct(case_.algorithm),
            .divisor = case_.op == ReduceOp::kAvg ? ranks_ : 1,
            .scaled = scaled(),
            .factor = scaled() ? typed_factor(r) : 1,
            .fingerprint = case_.fingerprint,
            .limit_ns = case_.limit_ns,
            .channels = static_cast<uint32_t>(program.channels.size())},
           static_cast<uint32_t>(program.channels.size()),
           memory_[r]});
    }
    return all;
  }

  /// Every rank's result, any NaN for any other, and nothing behind it. A barrier has none.
  bool right() {
    const size_t element = size_of(case_.type);
    for (uint32_t r = 0; r < ranks_; ++r) {
      for (size_t at = 0; at < expected_.size(); at += element) {
        const std::byte* found = out(r) + at;
        const std::byte* wanted = expected_.data() + at;
        if (std::memcmp(found, wanted, element) == 0) continue;
        if (kernels::test::is_nan(case_.type, found) && kernels::test::is_nan(case_.type, wanted))
          continue;
        return false;
      }
      for (size_t g = 0; g < kGuardBytes; ++g) {
        if (memory_[r][memory_[r].size() - 1 - g] != std::byte{0xa5}) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 64;

  bool gathers() const { return case_.collective == Collective::kAllGather; }
  bool scaled() const { return case_.op == ReduceOp::kMulSum; }
  std::byte* out(uint32_t rank) { return memory_[rank].data() + case_.shift + out_; }
  std::byte* in(uint32_t rank) {
    if (case_.in_place) return out(rank) + (gathers() ? rank * bytes_ : 0);
    return memory_[rank].data() + case_.shift;
  }

  void expect() {
    if (gathers()) {
      for (uint32_t r = 0; r < ranks_; ++r) {
        expected_.insert(expected_.end(), in(r), in(r) + bytes_);
      }
      return;
    }
    if (case_.collective == Collective::kBarrier) return;
    expected_.resize(bytes_);
    std::vector<const std::byte*> sources;
    std::vector<double> factors;
    for (uint32_t r = 0; r < ranks_; ++r) {
      sources.push_back(in(r));
      factors.push_back(typed_factor(r));
    }
    std::byte* const to = expected_.data();
    kernels::scalar_move_function(case_.type,
                                  case_.op)({.sources = sources.data(),
                                             .destinations = &to,
                                             .source_count = ranks_,
                                             .destination_count = 1,
                                             .count = case_.count,
                                             .divisor = case_.op == ReduceOp::kAvg ? ranks_ : 1,
                                             .nontemporal = 0,
                                             .factors = scaled() ? factors.data() : nullptr});
  }

  TypedCase case_;
  uint32_t ranks_;
  size_t bytes_ = 0, out_ = 0;
  schedule::LoweredOperation operation_;
  std::vector<std::vector<std::byte>> memory_;  // [rank]
  std::vector<std::byte> expected_;
};

/// Scaled sums of floats below 32 bits are direct ones: a product that is sent would be rounded.
inline bool can_scale(DataType type, Algorithm algorithm) {
  return is_direct(algorithm) || (type != DataType::kFloat16 && type != DataType::kBFloat16 &&
                                  type != DataType::kFloat8E4M3 && type != DataType::kFloat8E5M2);
}

/// Every type with every operator: one element, an odd number, and `most_bytes`; at odd places, and
/// in place where the algorithm allows.
inline std::vector<TypedCase> every_kernel(Algorithm algorithm, Protocol protocol,
                                           size_t most_bytes) {
  std::vector<TypedCase> cases;
  const bool may_be_in_place = algorithms::is_in_place_safe(Collective::kAllReduce, algorithm);
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      const auto type = static_cast<DataType>(t);
      const auto op = static_cast<ReduceOp>(o);
      if (!supports(type, op)) continue;
      if (op == ReduceOp::kMulSum && !can_scale(type, algorithm)) continue;
      const size_t most = most_bytes / size_of(type);
      for (const size_t count : {size_t{1}, most / 3 | 1, most}) {
        cases.push_back({.algorithm = algorithm,
                         .protocol = protocol,
                         .type = type,
                         .op = op,
                         .count = count,
                         .shift = cases.size() % 3 * (cases.size() % 5),
                         .in_place = may_be_in_place && cases.size() % 4 == 1,
                         .seed = cases.size()});
      }
    }
  }
  return cases;
}

}  // namespace rondo::engine::test
