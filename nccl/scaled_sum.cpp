// See scaled_sum.hpp. rondo's factors are doubles, in which NCCL's scalars of every type but large
// integers are exact.
#include "nccl/scaled_sum.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "nccl/driver.hpp"

namespace rondo::nccl {
namespace {

constexpr DataType kTypes[ncclNumTypes] = {
    DataType::kInt8,    DataType::kUint8,    DataType::kInt32,      DataType::kUint32,
    DataType::kInt64,   DataType::kUint64,   DataType::kFloat16,    DataType::kFloat32,
    DataType::kFloat64, DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2};

constexpr ReduceOp kOperators[ncclNumOps] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax,
                                             ReduceOp::kMin, ReduceOp::kAvg};

template <class T>
T load(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// A float of `1 + exponent + mantissa` bits, as IEEE's.
double small_float(unsigned bits, int exponent, int mantissa) {
  const int bias = (1 << (exponent - 1)) - 1;
  const int power = static_cast<int>(bits >> mantissa) & ((1 << exponent) - 1);
  const auto fraction = static_cast<double>(bits & ((1U << mantissa) - 1));
  const double sign = ((bits >> (exponent + mantissa)) & 1U) != 0 ? -1 : 1;
  if (power == (1 << exponent) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (power == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(1 + std::ldexp(fraction, -mantissa), power - bias);
}

/// e4m3 has no infinity: the numbers of its highest exponent count, but for the last, a NaN.
double e4m3(unsigned bits) {
  if ((bits & 0x7fU) == 0x7f) return std::nan("");
  if ((bits & 0x78U) != 0x78) return small_float(bits, 4, 3);
  return ((bits & 0x80U) != 0 ? -256.0 : 256.0) * (1 + static_cast<double>(bits & 7U) / 8);
}

constexpr int64_t kMostExact = int64_t{1} << 53;

template <class Integer>
Result<double> exact(Integer value) {
  if (std::cmp_less_equal(value, kMostExact) && std::cmp_greater_equal(value, -kMostExact)) {
    return static_cast<double>(value);
  }
  return unsupported("ncclRedOpCreatePreMulSum: the scalar " + std::to_string(value) +
                     " is beyond 2^53, up to which rondo's factors are exact");
}

}  // namespace

Result<DataType> read_type(ncclDataType_t type, const char* call) {
  if (static_cast<unsigned>(type) < ncclNumTypes) return kTypes[type];
  return refuse(std::string(call) + ": unknown ncclDataType_t " + std::to_string(type));
}

Result<double> decode_factor(const void* bytes, DataType type) {
  switch (type) {
    case DataType::kInt8:
      return static_cast<double>(load<int8_t>(bytes));
    case DataType::kUint8:
      return static_cast<double>(load<uint8_t>(bytes));
    case DataType::kInt32:
      return static_cast<double>(load<int32_t>(bytes));
    case DataType::kUint32:
      return static_cast<double>(load<uint32_t>(bytes));
    case DataType::kInt64:
      return exact(load<int64_t>(bytes));
    case DataType::kUint64:
      return exact(load<uint64_t>(bytes));
    case DataType::kFloat16:
      return small_float(load<uint16_t>(bytes), 5, 10);
    case DataType::kBFloat16:
      return small_float(load<uint16_t>(bytes), 8, 7);
    case DataType::kFloat8E5M2:
      return small_float(load<uint8_t>(bytes), 5, 2);
    case DataType::kFloat8E4M3:
      return e4m3(load<uint8_t>(bytes));
    case DataType::kFloat32:
      return static_cast<double>(load<float>(bytes));
    default:
      return load<double>(bytes);
  }
}

Result<ReadOperator> read_operator(ncclRedOp_t op, DataType type, ncclComm& comm, void* stream,
                                   const char* call) {
  if (op >= 0 && op < ncclNumOps) return ReadOperator{kOperators[op]};
  std::optional<FactorOperator> found;
  {
    const std::lock_guard lock(comm.calls);
    const auto index = static_cast<size_t>(op) - ncclNumOps;
    if (op > 0 && index < comm.operators.size()) found = comm.operators[index];
  }
  if (!found) {
    return refuse(std::string(call) + ": there is no operator " + std::to_string(op) +
                  " on this communicator");
  }
  if (found->type != type) {
    return refuse(std::string(call) + ": the operator was made for " +
                  std::string(name(found->type)) + ", not for " + std::string(name(type)));
  }
  if (found->device_scalar != nullptr) {
    unsigned char bytes[8];
    if (comm.device < 0) std::memcpy(bytes, found->device_scalar, size_of(type));
    if (comm.device >= 0)
      RONDO_TRY(comm.reader->read(bytes, found->device_scalar, size_of(type), stream));
    found->factor = RONDO_TRY(decode_factor(bytes, type));
  }
  return ReadOperator{ReduceOp::kMulSum, found->factor};
}

}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([&]() -> rondo::Status {
    const char* const call = "ncclRedOpCreatePreMulSum";
    RONDO_TRY(check_pointer(op, call, "the operator"));
    RONDO_TRY(check_pointer(scalar, call, "the scalar"));
    FactorOperator made{RONDO_TRY(read_type(type, call)), 1, nullptr};
    const Comm found = RONDO_TRY(find_ready(comm, call));
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
      return refuse(std::string(call) + ": unknown ncclScalarResidence_t " +
                    std::to_string(residence));
    }
    if (residence == ncclScalarDevice) {
      made.device_scalar = scalar;
    } else {
      made.factor = RONDO_TRY(decode_factor(scalar, made.type));
    }
    const std::lock_guard lock(found->calls);
    if (made.device_scalar != nullptr && found->device >= 0 && !found->reader) {
      found->reader = RONDO_TRY(driver::ScalarReader::make(found->device));
    }
    auto& all = found->operators;
    auto place = std::find(all.begin(), all.end(), std::nullopt);
    if (place == all.end()) place = all.emplace(all.end());
    *place = made;
    *op = static_cast<ncclRedOp_t>(ncclNumOps + (place - all.begin()));
    return {};
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([&]() -> rondo::Status {
    const Comm found = RONDO_TRY(find(comm, "ncclRedOpDestroy"));
    const std::lock_guard lock(found->calls);
    const auto index = static_cast<size_t>(op) - ncclNumOps;
    if (op < ncclNumOps || index >= found->operators.size() || !found->operators[index]) {
      return refuse("ncclRedOpDestroy: there is no operator " + std::to_string(op) +
                    " on this communicator");
    }
    found->operators[index].reset();
    return {};
  });
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias(
    "ncclRedOpCreatePreMulSum")]] decltype(ncclRedOpCreatePreMulSum) pncclRedOpCreatePreMulSum;
[[gnu::alias("ncclRedOpDestroy")]] decltype(ncclRedOpDestroy) pncclRedOpDestroy;
}
#pragma GCC visibility pop
