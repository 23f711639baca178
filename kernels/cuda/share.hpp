// Who does what: how a move is cut into single elements and 16-byte vectors, and which of them are a
// thread's. Index arithmetic only, so that a machine without a GPU can test it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/device_code.hpp"

namespace rondo::kernels::cuda {

inline constexpr size_t kVectorBytes = 16;  // the widest access that a thread has

/// A move's elements in order: `head` single ones, `vectors` of 16 bytes, `tail` single ones.
struct Partition {
  size_t head, vectors, tail;
};

/// `first`: the address of any operand. `differences`: the addresses of all others, each combined
/// with it by exclusive or, combined by or: operands can go by vectors where they start at the same
/// place within 16 bytes, and reach a multiple of 16 after whole elements.
constexpr Partition partition(size_t count, size_t element_bytes, uintptr_t first,
                              uintptr_t differences) {
  const size_t before = (kVectorBytes - first % kVectorBytes) % kVectorBytes;
  const size_t head = before / element_bytes;
  if (differences % kVectorBytes != 0 || before % element_bytes != 0 || head >= count) {
    return {.head = count, .vectors = 0, .tail = 0};
  }
  const size_t in_vector = kVectorBytes / element_bytes;
  const size_t vectors = (count - head) / in_vector;
  return {.head = head, .vectors = vectors, .tail = count - head - vectors * in_vector};
}

/// One of `threads` that share a move. They may be a block's, or a whole grid's.
struct Share {
  size_t thread, threads;
};

/// Calls body(i) for this thread's part of [0, count): every `threads`-th, neighbours for
/// neighbours. body(integral_constant<int, kUnroll>, i) stands for i, i + threads, ... kUnroll
/// times, so that their loads are in flight together; what is left goes one by one.
template <int kUnroll, class Body>
RONDO_DEVICE void for_share(size_t count, const Share& share, const Body& body) {
  const size_t step = kUnroll * share.threads;
  size_t i = share.thread;
  if constexpr (kUnroll > 1) {
    for (; i + (step - share.threads) < count; i += step) {
      body(std::integral_constant<int, kUnroll>{}, i);
    }
  }
  for (; i < count; i += share.threads) body(std::integral_constant<int, 1>{}, i);
}

}  // namespace rondo::kernels::cuda
