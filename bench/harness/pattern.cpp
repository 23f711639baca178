// The data of pattern.hpp. Integers are encoded into the small floats by hand: they are exact
// there, and rondo's own conversions could hide their own fault.
#include "bench/harness/pattern.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>

#include "bench/harness/mismatch.hpp"
#include "kernels/identity.hpp"

namespace rondo::bench {
namespace {

/// Largest integer up to which a sum of positive integers stays exact.
uint64_t exact_limit(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return 1 << 11;
    case DataType::kBFloat16:
      return 1 << 8;
    case DataType::kUint8:
      return 255;
    case DataType::kInt8:
      return 127;
    case DataType::kInt16:
      return 32767;
    case DataType::kUint16:
      return 65535;
    case DataType::kBool:
      return 1;
    case DataType::kFloat8E4M3:
      return 1 << 4;
    case DataType::kFloat8E5M2:
      return 1 << 3;
    default:
      return 1 << 24;
  }
}

/// An integer in a float of kFraction bits and an exponent with kBias.
template <class Bits, int kFraction, int kBias>
Bits encode_float(uint64_t value) {
  if (value == 0) return 0;
  const int exponent = std::bit_width(value) - 1;
  const uint64_t fraction =
      exponent <= kFraction ? value << (kFraction - exponent) : value >> (exponent - kFraction);
  const auto stored = static_cast<int>(fraction & ((1 << kFraction) - 1));
  return static_cast<Bits>(((exponent + kBias) << kFraction) | stored);
}

/// Calls body(encode), encode(v) giving the bit pattern of the integer v in `type`.
template <class Body>
auto with_encoder(DataType type, Body body) {
  switch (type) {
    case DataType::kFloat32:
      return body([](uint64_t v) { return std::bit_cast<uint32_t>(static_cast<float>(v)); });
    case DataType::kFloat64:
      return body([](uint64_t v) { return std::bit_cast<uint64_t>(static_cast<double>(v)); });
    case DataType::kFloat16:
      return body(encode_float<uint16_t, 10, 15>);
    case DataType::kBFloat16:
      return body([](uint64_t v) {
        return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(v)) >> 16);
      });
    case DataType::kFloat8E4M3:
      return body(encode_float<uint8_t, 3, 7>);
    case DataType::kFloat8E5M2:
      return body(encode_float<uint8_t, 2, 15>);
    case DataType::kInt16:
    case DataType::kUint16:
      return body([](uint64_t v) { return static_cast<uint16_t>(v); });
    case DataType::kInt32:
    case DataType::kUint32:
      return body([](uint64_t v) { return static_cast<uint32_t>(v); });
    case DataType::kInt64:
    case DataType::kUint64:
      return body([](uint64_t v) { return v; });
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      break;
  }
  return body([](uint64_t v) { return static_cast<uint8_t>(v); });
}

template <class Value>
size_t count_wrong(DataType type, size_t count, const void* buffer, Value value) {
  return with_encoder(type, [&](auto encode) {
    using Bits = decltype(encode(uint64_t{}));
    size_t wrong = 0;
    for (size_t i = 0; i < count; ++i) {
      Bits found;
      std::memcpy(&found, static_cast<const std::byte*>(buffer) + i * sizeof(Bits), sizeof(Bits));
      wrong += is_wrong(found, encode(value(i)));
    }
    return wrong;
  });
}

void fill_bits(DataType type, size_t count, void* buffer, uint64_t bits) {
  const size_t element = size_of(type);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<std::byte*>(buffer) + i * element, &bits, element);
  }
}

size_t count_other_bits(DataType type, size_t count, const void* buffer, uint64_t bits) {
  const size_t element = size_of(type);
  size_t other = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto* at = static_cast<const std::byte*>(buffer) + i * element;
    other += std::memcmp(at, &bits, element) != 0;
  }
  return other;
}

template <class Value>
void fill(DataType type, size_t count, void* buffer, Value value) {
  with_encoder(type, [&](auto encode) {
    using Bits = decltype(encode(uint64_t{}));
    for (size_t i = 0; i < count; ++i) {
      const Bits bits = encode(value(i));
      std::memcpy(static_cast<std::byte*>(buffer) + i * sizeof(Bits), &bits, sizeof(Bits));
    }
  });
}

}  // namespace

Pattern::Pattern(const CallShape& shape, int ranks)
    : shape_(shape), ranks_(ranks), range_(1), stride_(1) {
  for (int r = 0; is_varying(shape.collective) && r < ranks; ++r) {
    const std::vector<size_t> counts = block_counts(shape, r, ranks);
    std::partial_sum(counts.begin(), counts.end(), std::back_inserter(ends_.emplace_back()));
  }
  const uint64_t limit = exact_limit(shape.type);
  const auto n = static_cast<uint64_t>(ranks);
  const bool scaled = shape.op == ReduceOp::kMulSum;
  const bool sums = reduces(shape.collective) &&
                    (shape.op == ReduceOp::kSum || shape.op == ReduceOp::kAvg || scaled);
  range_ = limit;
  const uint64_t most = scaled ? limit / static_cast<uint64_t>(kFactor) : limit;
  if (sums) range_ = most > n ? std::max<uint64_t>((most - n) / n, 1) : 1;
  range_ = std::min<uint64_t>(range_, 1 << 16);  // hashed() has 16 bits to spread
  stride_ = (n + 6) / 7;  // seven factors of at most 4 stay below half's largest value
}

uint64_t Pattern::hashed(int rank, uint64_t index) const {
  auto h = static_cast<uint32_t>(index ^ (index >> 32)) * 0x9e3779b1u +
           static_cast<uint32_t>(rank) * 0x85ebca6bu;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  return 1 + (((h >> 16) * range_) >> 16);
}

uint64_t Pattern::contribution(int rank, uint64_t index) const {
  const uint64_t value = hashed(rank, index);
  if (!reduces(shape_.collective)) return value;
  if (shape_.op == ReduceOp::kProd) {
    if ((static_cast<uint64_t>(rank) + index) % stride_ != 0) return 1;
    // powers of two are exact in every floating type; odd factors change every wrapped integer
    // product
    if (is_floating(shape_.type) && size_of(shape_.type) == 1) return 2;  // seven fit
    if (is_floating(shape_.type)) return value % 2 == 0 ? 2 : 4;
    if (shape_.type == DataType::kBool) return 1;
    return value % 2 == 0 ? 3 : 5;
  }
  if (shape_.op == ReduceOp::kAvg && rank == ranks_ - 1) {
    // the last rank makes the sum divisible, so that the average is exact too
    const auto n = static_cast<uint64_t>(ranks_);
    uint64_t sum = value;
    for (int r = 0; r < ranks_ - 1; ++r) sum += hashed(r, index);
    return value + (n - sum % n) % n;
  }
  return value;
}

uint64_t Pattern::reduced(uint64_t index, int ranks) const {
  // Most checks are of sums, and take longer than a GPU's part of the measurement: so no decision
  // is made here per element and rank.
  if (shape_.op == ReduceOp::kSum && shape_.type != DataType::kBool) {
    uint64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += hashed(r, index);
    return sum;
  }
  uint64_t result = contribution(0, index);
  for (int r = 1; r < ranks; ++r) {
    const uint64_t value = contribution(r, index);
    switch (shape_.op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
      case ReduceOp::kMulSum:
        result += value;
        break;
      case ReduceOp::kProd:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kBand:
        result &= value;
        break;
      case ReduceOp::kBor:
        result |= value;
        break;
      case ReduceOp::kBxor:
        result ^= value;
        break;
    }
  }
  if (shape_.type == DataType::kBool) return result != 0 ? 1 : 0;
  if (shape_.op == ReduceOp::kMulSum) return result * static_cast<uint64_t>(kFactor);
  if (shape_.op != ReduceOp::kAvg) return result;
  return result / static_cast<uint64_t>(ranks_);
}

std::pair<size_t, uint64_t> Pattern::block_of(int rank, uint64_t index) const {
  const std::vector<uint64_t>& ends = ends_[static_cast<size_t>(rank)];
  const auto block =
      static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
  return {block, block == 0 ? index : index - ends[block - 1]};
}

uint64_t Pattern::expected(int rank, uint64_t index) const {
  const auto own = static_cast<size_t>(rank);
  if (shape_.collective == kSendRecv) return contribution(prev_of(rank, ranks_), index);
  switch (shape_.collective) {
    case Collective::kAllReduce:
    case Collective::kInclusiveScan:
    case Collective::kExclusiveScan:
      return reduced(index, internal::contributors(shape_.collective, rank, ranks_));
    case Collective::kReduce:
      return rank == shape_.root ? reduced(index) : 0;
    case Collective::kReduceScatter:
      return reduced(static_cast<uint64_t>(rank) * shape_.count + index);
    case Collective::kGather:
      if (rank != shape_.root) return 0;
      [[fallthrough]];
    case Collective::kAllGather:
      return contribution(static_cast<int>(index / shape_.count), index % shape_.count);
    case Collective::kBroadcast:
      return contribution(shape_.root, index);
    case Collective::kScatter:
      return contribution(shape_.root, static_cast<uint64_t>(rank) * shape_.count + index);
    case Collective::kAllToAll:
      return contribution(static_cast<int>(index / shape_.count),
                          static_cast<uint64_t>(rank) * shape_.count + index % shape_.count);
    case Collective::kGatherV:
      if (rank != shape_.root) return 0;
      [[fallthrough]];
    case Collective::kAllGatherV: {
      const auto [block, at] = block_of(rank, index);
      return contribution(static_cast<int>(block), at);
    }
    case Collective::kReduceScatterV:
      return reduced((own == 0 ? 0 : ends_[own][own - 1]) + index);
    case Collective::kScatterV:
      return contribution(shape_.root, (own == 0 ? 0 : ends_[own][own - 1]) + index);
    case Collective::kAllToAllV: {
      const auto [from, at] = block_of(rank, index);
      const uint64_t begin = own == 0 ? 0 : ends_[from][own - 1];
      return contribution(static_cast<int>(from), begin + at);
    }
    case Collective::kBarrier:
      break;
  }
  return 0;
}

// If a block is smaller than the largest, only its own elements: in place, other ranks' data
// follow.
size_t Pattern::in_count(int rank) const {
  const bool own = is_varying(shape_.collective) &&
                   internal::form_of(shape_.collective).in == internal::Holds::kOne;
  return own ? block_counts(shape_, rank, ranks_)[static_cast<size_t>(rank)]
             : in_elements(shape_, ranks_);
}
size_t Pattern::out_count(int rank) const {
  const bool own = is_varying(shape_.collective) &&
                   internal::form_of(shape_.collective).out == internal::Holds::kOne;
  return own ? block_counts(shape_, rank, ranks_)[static_cast<size_t>(rank)]
             : out_elements(shape_, ranks_);
}

void Pattern::fill_input(int rank, void* in) const {
  const size_t count = in_count(rank);
  if (!reads(shape_, rank)) {
    if (count > 0) std::memset(in, 0, count * size_of(shape_.type));
    return;
  }
  fill(shape_.type, count, in, [&](uint64_t i) { return contribution(rank, i); });
}

void Pattern::fill_output(int rank, void* out) const {
  if (fills(rank)) {
    fill_bits(shape_.type, out_count(rank), out, kernels::identity_bits(shape_.type, shape_.op));
    return;
  }
  fill(shape_.type, out_count(rank), out, [&](uint64_t i) { return expected(rank, i); });
}

size_t Pattern::wrong_output(int rank, const void* out) const {
  if (fills(rank)) {
    const uint64_t identity = kernels::identity_bits(shape_.type, shape_.op);
    return count_other_bits(shape_.type, out_count(rank), out, identity);
  }
  return count_wrong(shape_.type, out_count(rank), out,
                     [&](uint64_t i) { return expected(rank, i); });
}

size_t Pattern::wrong_input(int rank, const void* in) const {
  const bool cleared = !reads(shape_, rank);
  return count_wrong(shape_.type, in_count(rank), in,
                     [&](uint64_t i) { return cleared ? 0 : contribution(rank, i); });
}

}  // namespace rondo::bench
