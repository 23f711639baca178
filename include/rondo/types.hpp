// The vocabulary that every layer shares: data types, operators, collectives, algorithms, and their
// names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rondo {

/// Stable, append-only. Names on command lines are nccl-tests': float, double, half, bfloat16,
/// int32, int64, uint8.
enum class DataType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
};
inline constexpr int kDataTypes = 7;

/// kAvg is a sum and one division by the number of ranks at the very end (integers truncate towards
/// zero).
enum class ReduceOp : uint8_t { kSum = 0, kProd = 1, kMin = 2, kMax = 3, kAvg = 4 };
inline constexpr int kReduceOps = 5;

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
};
inline constexpr int kCollectives = 9;

/// What a buffer of a collective holds: `count` elements that all ranks share in, one block of
/// `count`, which belongs to one rank, or a block for every rank.
enum class Holds : uint8_t { kNothing, kAll, kOne, kEach };
struct Form {
  Holds in, out;
  bool reduces;
  bool only_root_reads, only_root_writes;  // In, or Out, is used on the root alone
};
constexpr Form form_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
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
    case Collective::kBarrier:
      break;
  }
  return {Holds::kNothing, Holds::kNothing, false, false, false};
}
constexpr bool is_rooted(Collective collective) {
  const Form form = form_of(collective);
  return form.only_root_reads || form.only_root_writes;
}
/// Elements of a buffer that holds this, for a call with `count`.
constexpr size_t elements(Holds holds, size_t count, size_t ranks) {
  return holds == Holds::kNothing ? 0 : holds == Holds::kEach ? count * ranks : count;
}

/// How a collective is carried out. The "direct" ones touch peers' buffers themselves and need
/// every rank's buffers to be mapped by all (library memory, or threads of one process); the others
/// stage through slots.
enum class Algorithm : uint8_t {
  kAuto = 0,
  kRing = 1,           // 2(N-1) steps, each rank talks to two neighbours
  kOneShot = 2,        // everybody publishes, everybody reduces everything
  kTwoShot = 3,        // direct exchange reduce-scatter, then direct exchange all-gather
  kOneShotDirect = 4,  // as kOneShot, reading peers' buffers in place
  kTwoShotDirect = 5,  // rank r reduces chunk r from all inputs into all outputs
  kFlat = 6,           // barrier: signal everybody, wait for everybody
  kTree = 7,           // a binary tree, up, down, or both: 2 log2(N) hops
  kStar = 8,           // everything to the root, or from it, or both: the naive baseline
};
inline constexpr int kAlgorithms = 9;

constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat64:
      return 8;
    case DataType::kFloat16:
      return 2;
    case DataType::kBFloat16:
      return 2;
    case DataType::kInt32:
      return 4;
    case DataType::kInt64:
      return 8;
    case DataType::kUint8:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

inline constexpr std::string_view kDataTypeNames[kDataTypes] = {
    "float", "double", "half", "bfloat16", "int32", "int64", "uint8"};
inline constexpr std::string_view kReduceOpNames[kReduceOps] = {"sum", "prod", "min", "max", "avg"};
inline constexpr std::string_view kCollectiveNames[kCollectives] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier",
    "reduce",     "gather",         "scatter",    "all_to_all"};
inline constexpr std::string_view kAlgorithmNames[kAlgorithms] = {
    "auto", "ring", "one-shot", "two-shot", "one-shot-direct", "two-shot-direct",
    "flat", "tree", "star"};

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

/// The value with that name, e.g. parse<DataType>("bfloat16", kDataTypeNames).
template <class Enum, size_t N>
constexpr std::optional<Enum> parse(std::string_view text, const std::string_view (&names)[N]) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace rondo
