// Divides a move among threads: how it is cut into single elements and 16-byte vectors, and which
// of them belong to a thread. Index arithmetic only, so that a machine without a GPU can test it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_code.hpp"

namespace rondo::kernels::cuda {

inline constexpr size_t kVectorBytes = 16;  // a thread's unit of work, and its widest access

/// A move's elements in order: `head` single ones, `vectors` of 16 bytes, `tail` single ones.
/// `width`: bytes of the widest access that the addresses of all operands' vectors allow.
struct Partition {
  size_t head, vectors, tail, width;
};

/// `first`: the address of any operand. `differences`: the bitwise or of every other address xor
/// `first`. Operands allow accesses of a width if they start at the same offset within it, and
/// reach a multiple of it after whole elements.
constexpr Partition partition(size_t count, size_t element_bytes, uintptr_t first,
                              uintptr_t differences) {
  // A power of two: uses the mask, because a GPU needs a hundred instructions for a 64-bit
  // division.
  size_t width = kVectorBytes;
  const auto before = [&] { return -first & (width - 1); };
  while ((differences & (width - 1)) != 0 || before() % element_bytes != 0) width /= 2;
  const size_t head = before() / element_bytes < count ? before() / element_bytes : count;
  const size_t in_vector = kVectorBytes / element_bytes;
  const size_t vectors = (count - head) / in_vector;
  return {
      .head = head, .vectors = vectors, .tail = count - head - vectors * in_vector, .width = width};
}

/// One of `threads` threads that share a move: a block's, or a whole grid's.
struct Share {
  size_t thread, threads;
};

/// The access of a piece of up to 16 bytes: `bytes` in all, by `width` bytes, to which it is
/// aligned.
struct Access {
  size_t width, bytes;
};

/// Calls, for this thread's part of a move, with offsets in bytes:
///     whole(at)          kUnroll vectors, `threads` vectors apart from `at` on, so that their loads
///                        are in flight together; only where they can be accessed whole
///     piece(at, access)  everything else: other vectors, and both ends
/// Neighbouring threads access neighbouring vectors.
template <int kUnroll, class Whole, class Piece>
RONDO_DEVICE void for_share(const Partition& p, size_t element_bytes, const Share& share,
                            const Whole& whole, const Piece& piece) {
  const size_t head = p.head * element_bytes, tail = p.tail * element_bytes;
  size_t done = 0;
  if constexpr (kUnroll > 1) {  // one vector is a piece, and need not be compiled twice
    // No division, for which a GPU needs as long as for a small move.
    const size_t step = kUnroll * share.threads;
    for (; p.width == kVectorBytes && done + step <= p.vectors; done += step) {
      whole(head + (done + share.thread) * kVectorBytes);
    }
  }
  const size_t single = p.width < element_bytes ? p.width : element_bytes;
  for (size_t i = done + share.thread; i < p.vectors + 2; i += share.threads) {
    if (i < p.vectors) {
      piece(head + i * kVectorBytes, Access{p.width, kVectorBytes});
    } else if (i == p.vectors && head != 0) {
      piece(size_t{0}, Access{single, head});
    } else if (i > p.vectors && tail != 0) {
      piece(head + p.vectors * kVectorBytes, Access{single, tail});
    }
  }
}

}  // namespace rondo::kernels::cuda
