// Checks that values have the same numbers in C and C++.
#include <cstddef>
#include <cstdint>

#include "rondo/rondo.h"
#include "rondo/rondo.hpp"

namespace rondo {
namespace {

/// Whether the list holds C++'s first `count` values in order, each with the same number in C.
template <class Enum>
struct Same {
  int32_t c;
  Enum cpp;
};
template <class Enum, size_t N>
constexpr bool agree(const Same<Enum> (&values)[N], size_t count) {
  for (size_t i = 0; i < N; ++i) {
    if (values[i].c != static_cast<int32_t>(i) || values[i].cpp != static_cast<Enum>(i))
      return false;
  }
  return N == count;
}

constexpr int kCodes = 11, kLogLevels = 5;
static_assert(agree<Code>({{RONDO_OK, Code::kOk},
                           {RONDO_INVALID_ARGUMENT, Code::kInvalidArgument},
                           {RONDO_UNAVAILABLE, Code::kUnavailable},
                           {RONDO_RESOURCE_EXHAUSTED, Code::kResourceExhausted},
                           {RONDO_MISMATCH, Code::kMismatch},
                           {RONDO_PEER_DIED, Code::kPeerDied},
                           {RONDO_TIMEOUT, Code::kTimeout},
                           {RONDO_ABORTED, Code::kAborted},
                           {RONDO_SYSTEM, Code::kSystem},
                           {RONDO_BOOTSTRAP, Code::kBootstrap},
                           {RONDO_DATA_ERROR, Code::kDataError}},
                          kCodes));
static_assert(agree<DataType>({{RONDO_FLOAT32, DataType::kFloat32},
                               {RONDO_FLOAT64, DataType::kFloat64},
                               {RONDO_FLOAT16, DataType::kFloat16},
                               {RONDO_BFLOAT16, DataType::kBFloat16},
                               {RONDO_INT32, DataType::kInt32},
                               {RONDO_INT64, DataType::kInt64},
                               {RONDO_UINT8, DataType::kUint8},
                               {RONDO_INT8, DataType::kInt8},
                               {RONDO_INT16, DataType::kInt16},
                               {RONDO_UINT16, DataType::kUint16},
                               {RONDO_UINT32, DataType::kUint32},
                               {RONDO_UINT64, DataType::kUint64},
                               {RONDO_BOOL, DataType::kBool},
                               {RONDO_FLOAT8_E4M3, DataType::kFloat8E4M3},
                               {RONDO_FLOAT8_E5M2, DataType::kFloat8E5M2}},
                              kDataTypes));
static_assert(RONDO_ANY_SOURCE == kAnySource && RONDO_ANY_TAG == kAnyTag &&
              RONDO_MAX_TAG == kMaxTag);
static_assert(agree<ReduceOp>({{RONDO_SUM, ReduceOp::kSum},
                               {RONDO_PROD, ReduceOp::kProd},
                               {RONDO_MIN, ReduceOp::kMin},
                               {RONDO_MAX, ReduceOp::kMax},
                               {RONDO_AVG, ReduceOp::kAvg},
                               {RONDO_BAND, ReduceOp::kBand},
                               {RONDO_BOR, ReduceOp::kBor},
                               {RONDO_BXOR, ReduceOp::kBxor},
                               {RONDO_MULSUM, ReduceOp::kMulSum}},
                              kReduceOps));
static_assert(agree<Collective>({{RONDO_ALL_REDUCE, Collective::kAllReduce},
                                 {RONDO_REDUCE_SCATTER, Collective::kReduceScatter},
                                 {RONDO_ALL_GATHER, Collective::kAllGather},
                                 {RONDO_BROADCAST, Collective::kBroadcast},
                                 {RONDO_BARRIER, Collective::kBarrier},
                                 {RONDO_REDUCE, Collective::kReduce},
                                 {RONDO_GATHER, Collective::kGather},
                                 {RONDO_SCATTER, Collective::kScatter},
                                 {RONDO_ALL_TO_ALL, Collective::kAllToAll},
                                 {RONDO_ALL_GATHER_V, Collective::kAllGatherV},
                                 {RONDO_REDUCE_SCATTER_V, Collective::kReduceScatterV},
                                 {RONDO_ALL_TO_ALL_V, Collective::kAllToAllV},
                                 {RONDO_GATHER_V, Collective::kGatherV},
                                 {RONDO_SCATTER_V, Collective::kScatterV},
                                 {RONDO_INCLUSIVE_SCAN, Collective::kInclusiveScan},
                                 {RONDO_EXCLUSIVE_SCAN, Collective::kExclusiveScan}},
                                kCollectives));
static_assert(agree<Algorithm>({{RONDO_AUTO, Algorithm::kAuto},
                                {RONDO_RING, Algorithm::kRing},
                                {RONDO_ONE_SHOT, Algorithm::kOneShot},
                                {RONDO_TWO_SHOT, Algorithm::kTwoShot},
                                {RONDO_ONE_SHOT_DIRECT, Algorithm::kOneShotDirect},
                                {RONDO_TWO_SHOT_DIRECT, Algorithm::kTwoShotDirect},
                                {RONDO_FLAT, Algorithm::kFlat},
                                {RONDO_TREE, Algorithm::kTree},
                                {RONDO_STAR, Algorithm::kStar},
                                {RONDO_HIERARCHICAL, Algorithm::kHierarchical},
                                {RONDO_HIERARCHICAL_TREE, Algorithm::kHierarchicalTree},
                                {RONDO_COPY_ENGINE, Algorithm::kCopyEngine}},
                               kAlgorithms));
static_assert(agree<LogLevel>({{RONDO_LOG_DEBUG, LogLevel::kDebug},
                               {RONDO_LOG_INFO, LogLevel::kInfo},
                               {RONDO_LOG_WARN, LogLevel::kWarn},
                               {RONDO_LOG_ERROR, LogLevel::kError},
                               {RONDO_LOG_OFF, LogLevel::kOff}},
                              kLogLevels));
static_assert(RONDO_NO_COLOR == Communicator::kNoColor);

}  // namespace
}  // namespace rondo
