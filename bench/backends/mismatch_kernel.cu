#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "bench/backends/mismatch_kernel.hpp"
#include "bench/harness/mismatch.hpp"

namespace rondo::bench {
namespace {

/// This thread's findings: the grid's threads take elements in turn, so that neighbours load
/// neighbours.
template <class Bits>
__device__ Mismatch share_of(const void* found, const void* expected, size_t count) {
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  Mismatch mine;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    if (!is_wrong(static_cast<const Bits*>(found)[i], static_cast<const Bits*>(expected)[i])) {
      continue;
    }
    if (mine.wrong++ == 0) mine.first = i;
  }
  return mine;
}

__device__ Mismatch share_of(const void* found, const void* expected, size_t count,
                             size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return share_of<uint8_t>(found, expected, count);
    case 2:
      return share_of<uint16_t>(found, expected, count);
    case 4:
      return share_of<uint32_t>(found, expected, count);
    default:
      return share_of<uint64_t>(found, expected, count);
  }
}

// Only threads with findings touch the result, so there is no contention without errors. No block
// waits for another, so blocks run in whatever room other ranks' kernels leave.
__global__ void __launch_bounds__(kMismatchThreads)
    compare(const void* found, const void* expected, size_t count, size_t element_bytes,
            Mismatch* result) {
  const Mismatch mine = share_of(found, expected, count, element_bytes);
  if (mine.wrong == 0) return;
  using Word = unsigned long long;  // what atomics are declared for
  static_assert(sizeof(Word) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<Word*>(&result->wrong), static_cast<Word>(mine.wrong));
  atomicMin(reinterpret_cast<Word*>(&result->first), static_cast<Word>(mine.first));
}

}  // namespace

const void* mismatch_kernel() { return reinterpret_cast<const void*>(&compare); }

}  // namespace rondo::bench
