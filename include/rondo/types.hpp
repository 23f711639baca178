// The vocabulary of every layer: data types, operators, collectives, algorithms, and their names; and
// how data parallelism names a model's tensors and their buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace rondo {

/// Stable, append-only. Names on command lines are nccl-tests', where it has the type. A bool is
/// one byte: any value but zero is true; results are 0 or 1. The fp8 formats are OCP's.
enum class DataType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kInt8 = 7,
  kInt16 = 8,
  kUint16 = 9,
  kUint32 = 10,
  kUint64 = 11,
  kBool = 12,
  kFloat8E4M3 = 13,  // "fn": up to 448, no infinity; overflow is NaN
  kFloat8E5M2 = 14,  // as IEEE's: up to 57344, then infinity
};
inline constexpr int kDataTypes = 15;

/// Stable, append-only. kAvg is a sum, divided once by the number of ranks at the very end.
/// On bools sum and maximum are "or", product and minimum "and". supports() says which type has which
/// operator.
///
/// Sums, scaled sums and products of integers wrap around, as in MPI and NCCL. The result is correct
/// modulo 2^8, 2^16, 2^32 or 2^64, and signed integers are in two's complement. An average of integers
/// does not wrap: it is the exact average, truncated towards zero. It uses only the algorithms that
/// Config::reproducible allows. With Config::wrapping_averages the sum of an average wraps before it
/// is divided, as in NCCL, and every algorithm may be used.
///
/// kMulSum converts the factor to the type of the sum, which is fp32 for smaller floats, and
/// multiplies before adding. For integers a factor must be a whole number in the range of the type.
/// For bools it is true unless it is 0, and must not be NaN. For floats a finite factor other than 0
/// must not become infinite or 0. NaN and infinity are allowed.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kProd = 1,
  kMin = 2,
  kMax = 3,
  kAvg = 4,
  kBand = 5,  // bitwise, from here
  kBor = 6,
  kBxor = 7,
  kMulSum = 8,  // each rank's input times its own CallOptions::factor, then summed
};
inline constexpr int kReduceOps = 9;

enum class Collective : uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kReduce = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kAllGatherV = 9,  // _v: blocks of different sizes
  kReduceScatterV = 10,
  kAllToAllV = 11,
  kGatherV = 12,
  kScatterV = 13,
  kInclusiveScan = 14,
  kExclusiveScan = 15,
};
inline constexpr int kCollectives = 16;

/// The collective of which this is the _v form; other collectives are returned unchanged.
constexpr Collective base_of(Collective collective) {
  switch (collective) {
    case Collective::kAllGatherV:
      return Collective::kAllGather;
    case Collective::kReduceScatterV:
      return Collective::kReduceScatter;
    case Collective::kAllToAllV:
      return Collective::kAllToAll;
    case Collective::kGatherV:
      return Collective::kGather;
    case Collective::kScatterV:
      return Collective::kScatter;
    default:
      return collective;
  }
}
constexpr bool is_varying(Collective collective) { return base_of(collective) != collective; }

/// A scan reduces over the ranks up to each: every rank has a result of its own.
constexpr bool is_scan(Collective collective) {
  return collective == Collective::kInclusiveScan || collective == Collective::kExclusiveScan;
}
namespace internal {

/// How many ranks' inputs, from rank 0 on, the result of `rank` holds in a collective that reduces.
constexpr int contributors(Collective collective, int rank, int ranks) {
  return !is_scan(collective) ? ranks : collective == Collective::kInclusiveScan ? rank + 1 : rank;
}

/// What a buffer of a collective holds: `count` elements common to all ranks, one block of `count`
/// that belongs to one rank, or a block for every rank.
enum class Holds : uint8_t { kNothing, kAll, kOne, kEach };
struct Form {
  Holds in, out;
  bool reduces;
  bool only_root_reads, only_root_writes;  // In, or Out, is used on the root alone
};
constexpr Form form_of(Collective collective) {
  switch (base_of(collective)) {
    case Collective::kAllReduce:
    case Collective::kInclusiveScan:
    case Collective::kExclusiveScan:
      return {Holds::kAll, Holds::kAll, true, false, false};
    case Collective::kReduceScatter:
      return {Holds::kEach, Holds::kOne, true, false, false};
    case Collective::kAllGather:
      return {Holds::kOne, Holds::kEach, false, false, false};
    case Collective::kBroadcast:
      return {Holds::kAll, Holds::kAll, false, true, false};
    case Collective::kReduce:
      return {Holds::kAll, Holds::kAll, true, false, true};
    case Collective::kGather:
      return {Holds::kOne, Holds::kEach, false, false, true};
    case Collective::kScatter:
      return {Holds::kEach, Holds::kOne, false, true, false};
    case Collective::kAllToAll:
      return {Holds::kEach, Holds::kEach, false, false, false};
    default:  // barrier
      break;
  }
  return {Holds::kNothing, Holds::kNothing, false, false, false};
}
constexpr bool is_rooted(Collective collective) {
  const Form form = form_of(collective);
  return form.only_root_reads || form.only_root_writes;
}
/// Elements of such a buffer in a call with `count`.
constexpr size_t elements(Holds holds, size_t count, size_t ranks) {
  return holds == Holds::kNothing ? 0 : holds == Holds::kEach ? count * ranks : count;
}

}  // namespace internal

/// How a collective is executed. Direct algorithms access peers' buffers in place. These must be
/// library memory, or belong to threads of one process; algorithms that do not reduce also accept
/// plain memory where the kernel copies between processes. The others stage through slots.
enum class Algorithm : uint8_t {
  kAuto = 0,
  kRing = 1,               // 2(N-1) steps, each rank talks to two neighbours
  kOneShot = 2,            // every rank publishes its input and reduces all of them
  kTwoShot = 3,            // direct exchange reduce-scatter, then direct exchange all-gather
  kOneShotDirect = 4,      // as kOneShot, reading peers' buffers in place
  kTwoShotDirect = 5,      // rank r reduces chunk r from all inputs into all outputs
  kFlat = 6,               // barrier: signal every rank, wait for every rank
  kTree = 7,               // a binary tree, up, down, or both: 2 log2(N) hops
  kStar = 8,               // to the root, from it, or both: the naive baseline
  kHierarchical = 9,       // inside each host, then between hosts; for ranks on several hosts
  kHierarchicalTree = 10,  // likewise, through one rank of each host: for small messages
  /// On GPUs, in memory that all ranks have registered: copies that the GPU's copy engines make, not
  /// kernels. Only where it is asked for (Communicator::register_device_memory()).
  kCopyEngine = 11,
};
inline constexpr int kAlgorithms = 12;

/// Where a message comes from, and its tag, as a recv or a probe asks for them: any rank, any tag.
/// kAnySource is not -1, which programs pass by mistake for the rank before rank 0.
inline constexpr int kAnySource = -2;
inline constexpr int kAnyTag = -1;
/// Tags are 0 to this: as many as every MPI has. A message that is sent without a tag has tag 0.
inline constexpr int kMaxTag = 32767;

/// Bytes of an element; 0 for a value outside the enumeration.
constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat64:
    case DataType::kInt64:
    case DataType::kUint64:
      return 8;
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kUint32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kInt16:
    case DataType::kUint16:
      return 2;
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      return 1;
  }
  return 0;
}

/// Whether it is fp64, fp32, fp16, bf16 or one of the fp8 formats.
constexpr bool is_floating(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16 || type == DataType::kFloat8E4M3 ||
         type == DataType::kFloat8E5M2;
}

/// Whether the type has the operator: floating-point types have no bitwise operators, bools no
/// average. False for values outside the enumerations.
constexpr bool supports(DataType type, ReduceOp op) {
  if (static_cast<int>(type) >= kDataTypes || static_cast<int>(op) >= kReduceOps) return false;
  const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  if (bitwise) return !is_floating(type);
  return type != DataType::kBool || op != ReduceOp::kAvg;
}

/// The same in a collective: scans have no average, because ranks fold different numbers of inputs.
constexpr bool supports(Collective collective, DataType type, ReduceOp op) {
  return supports(type, op) && !(is_scan(collective) && op == ReduceOp::kAvg);
}

/// The data type of a C++ type, for calls that take spans. Specialise it for types of your own that
/// have one of the formats without a C++ type, such as a half; kValue is then that DataType.
template <class T>
struct DataTypeOf {
  static constexpr std::optional<DataType> find() {
    if (std::is_same_v<T, bool>) return DataType::kBool;
    if (std::is_same_v<T, float>) return DataType::kFloat32;
    if (std::is_same_v<T, double>) return DataType::kFloat64;
    if (std::is_same_v<T, std::byte>) return DataType::kUint8;
    if (!std::is_integral_v<T> || sizeof(T) > 8) return std::nullopt;
    constexpr DataType kSigned[] = {DataType::kInt8, DataType::kInt16, DataType::kInt32,
                                    DataType::kInt64};
    constexpr DataType kUnsigned[] = {DataType::kUint8, DataType::kUint16, DataType::kUint32,
                                      DataType::kUint64};
    constexpr int kSize = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? kSigned[kSize] : kUnsigned[kSize];
  }
  static constexpr std::optional<DataType> kValue = find();
};

inline constexpr std::string_view kDataTypeNames[kDataTypes] = {
    "float", "double", "half",   "bfloat16", "int32", "int64",  "uint8", "int8",
    "int16", "uint16", "uint32", "uint64",   "bool",  "f8e4m3", "f8e5m2"};
inline constexpr std::string_view kReduceOpNames[kReduceOps] = {
    "sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "mulsum"};
inline constexpr std::string_view kCollectiveNames[kCollectives] = {
    "all_reduce", "reduce_scatter", "all_gather",       "broadcast",
    "barrier",    "reduce",         "gather",           "scatter",
    "all_to_all", "all_gather_v",   "reduce_scatter_v", "all_to_all_v",
    "gather_v",   "scatter_v",      "inclusive_scan",   "exclusive_scan"};
inline constexpr std::string_view kAlgorithmNames[kAlgorithms] = {
    "auto", "ring", "one-shot", "two-shot",     "one-shot-direct",   "two-shot-direct",
    "flat", "tree", "star",     "hierarchical", "hierarchical-tree", "copy-engine"};

/// The name, or "?" for a value outside the enumeration (which a peer or a C caller can produce).
constexpr std::string_view name(DataType v) {
  return static_cast<int>(v) < kDataTypes ? kDataTypeNames[static_cast<int>(v)] : "?";
}
constexpr std::string_view name(ReduceOp v) {
  return static_cast<int>(v) < kReduceOps ? kReduceOpNames[static_cast<int>(v)] : "?";
}
constexpr std::string_view name(Collective v) {
  return static_cast<int>(v) < kCollectives ? kCollectiveNames[static_cast<int>(v)] : "?";
}
constexpr std::string_view name(Algorithm v) {
  return static_cast<int>(v) < kAlgorithms ? kAlgorithmNames[static_cast<int>(v)] : "?";
}

namespace internal {

/// The value with that name, e.g. parse<DataType>("bfloat16", kDataTypeNames).
template <class Enum, size_t N>
constexpr std::optional<Enum> parse(std::string_view text, const std::string_view (&names)[N]) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

/// Explains why a data type or operator that other libraries have is missing here; empty for any
/// other name.
constexpr std::string_view why_absent(std::string_view name) {
  for (const std::string_view word : {"complex", "cfloat", "cdouble"}) {
    if (name.find(word) != name.npos) {
      return "there are no complex types: a sum of complex numbers is one of twice as many reals";
    }
  }
  for (const std::string_view word : {"user", "custom"}) {
    if (name.find(word) != name.npos) return "there are no user-defined operators";
  }
  return {};
}

}  // namespace internal

#pragma GCC visibility push(default)  // librondo.so exports this part

/// One tensor of a model, as rondo/ddp.hpp trains it.
struct DdpTensor {
  std::string name;
  std::vector<size_t> shape;  // row-major
  /// Default: the options'. kFloat32, kFloat64, kBFloat16 or kFloat16; a buffer may have any type.
  std::optional<DataType> type = std::nullopt;
  /// The caller's parameter (or buffer) and gradient, borrowed until the DistributedDataParallel is
  /// destroyed, at least as aligned as their type. Null: rondo's memory. Given for all parameters or
  /// for none; likewise gradients; likewise buffers, which have no gradient. With shards: none.
  ///
  /// Such a gradient is copied to its bucket when it is ready, and back when it is reduced; the
  /// caller must not write it in between. No copy is made of a bucket whose tensors lie in memory of
  /// rondo::alloc as they do in the bucket, from a multiple of 64 bytes to another and without gaps:
  /// that is where it is reduced. (On a device: in any memory of the device.)
  void* data = nullptr;
  void* gradient = nullptr;
  /// Some steps do not use it on some ranks, which then call gradient_skipped() instead of
  /// gradient_ready(). begin() sets its gradient to zero, the caller's memory too: backward writes it
  /// after begin(). Costs one small all-reduce per step.
  bool may_skip = false;
  /// Not a parameter, but a second gradient of the tensor with that index, added to the first when
  /// both are reduced: the lookup's part of an embedding that is tied to the output layer. Such
  /// tensors come last.
  int adds_to = -1;

  size_t count() const;  // elements
};

/// Gradients that are contiguous and travel together.
struct DdpBucket {
  struct Piece {
    size_t tensor, begin, end;  // elements of the tensor
  };
  std::vector<Piece> pieces;
  size_t offset, count;  // elements of the flat storage, padding included
  size_t byte_offset;
};

#pragma GCC visibility pop

}  // namespace rondo
