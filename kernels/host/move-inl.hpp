// One move by vectors, for the instruction set that foreach_target.h is compiling for: the loop of
// a call, the treatment of its ends, streaming of results around the cache, and kernels that are
// aliases of others. Knows of types and operators only what lanes-inl.hpp defines.
#if defined(RONDO_KERNELS_MOVE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef RONDO_KERNELS_MOVE_INL
#undef RONDO_KERNELS_MOVE_INL
#else
#define RONDO_KERNELS_MOVE_INL
#endif

#include "hwy/cache_control.h"
#include "kernels/host/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::kernels {
namespace HWY_NAMESPACE {

inline constexpr size_t kFull = hn::MaxLanes(hn::ScalableTag<uint8_t>());  // bytes of a vector
inline constexpr size_t kLine = 64;
inline constexpr size_t kTile = 8192;             // results waiting to be streamed: a part of L1
inline constexpr size_t kWriteAhead = 1024;       // bytes between a store and the prefetch for it
inline constexpr size_t kSmallestStreamed = 512;  // below this, streaming costs more than it saves

/// K sources and M destinations with the counts known to the compiler and the pointers in
/// registers.
template <uint32_t K, uint32_t M>
struct FixedOperands {
  explicit FixedOperands(const Move& move) : divisor(move.divisor) {
    for (uint32_t s = 0; s < K; ++s) sources[s] = move.sources[s];
    for (uint32_t j = 0; j < M; ++j) destinations[j] = move.destinations[j];
  }
  static constexpr uint32_t source_count = K, destination_count = M;
  const std::byte* sources[K];
  std::byte* destinations[M];
  uint32_t divisor;
};

template <uint32_t K, uint32_t M>
HWY_INLINE bool is_shape(const Move& move) {
  return move.source_count == K && move.destination_count == M;
}

template <class Op>
concept Bitwise =
    std::is_same_v<Op, BitAnd> || std::is_same_v<Op, BitOr> || std::is_same_v<Op, BitXor>;

/// Whether two sources to one and to two destinations have separate loops. These take most of the
/// compile time, so rare kernels go without them; in fp8, conversions dominate the run time anyway.
template <class E, class Op>
constexpr bool has_fixed_shapes() {
  constexpr bool kFloat8 = sizeof(typename E::Folded) > 2 * sizeof(typename E::Stored);
  return !kFloat8 && !Bitwise<Op> && !std::is_same_v<Op, ScaledSum>;
}

template <class L, class Op, class Operands>
HWY_INLINE typename L::V load(const Operands& operands, uint32_t source, size_t at) {
  const typename L::V v = L::load(operands.sources[source] + at);
  if constexpr (std::is_same_v<Op, ScaledSum>) {
    return L::scale(v, operands.factors[source]);
  } else {
    return v;
  }
}

/// Folds kUnroll vectors; offsets in bytes. Loads everything before it stores anything: a
/// destination may be a source.
template <class L, class Op, int kUnroll, bool kStream, class Operands>
HWY_INLINE void fold_vectors(const Operands& operands, size_t source_at, size_t destination_at) {
  typename L::V folded[kUnroll];
  for (int u = 0; u < kUnroll; ++u) {
    folded[u] = load<L, Op>(operands, 0, source_at + u * L::kBytes);
  }
  for (uint32_t s = 1; s < operands.source_count; ++s) {
    for (int u = 0; u < kUnroll; ++u) {
      const auto next = load<L, Op>(operands, s, source_at + u * L::kBytes);
      folded[u] = L::template apply<Op>(folded[u], next);
    }
  }
  if constexpr (std::is_floating_point_v<hn::TFromD<typename L::D>>) {
    if (operands.divisor > 1) {
      for (int u = 0; u < kUnroll; ++u) folded[u] = L::divide(folded[u], operands.divisor);
    }
  }
  for (uint32_t j = 0; j < operands.destination_count; ++j) {
    std::byte* destination = operands.destinations[j] + destination_at;
    for (int u = 0; u < kUnroll; ++u) {
      if constexpr (kStream) {
        L::stream(folded[u], destination + u * L::kBytes);
      } else {
        L::store(folded[u], destination + u * L::kBytes);
      }
    }
  }
}

/// Folds `bytes` through the cache: by several vectors, one, a short one, then element by element.
template <class E, class Op, class Operands>
HWY_INLINE void fold_range(const Operands& operands, size_t source_at, size_t destination_at,
                           size_t bytes) {
  using Full = Lanes<E, kFull>;
  using Short = Lanes<E, 16>;
  constexpr size_t kBlock = Full::kUnroll * kFull;
  size_t at = 0;
  for (; at + kBlock <= bytes; at += kBlock) {
    fold_vectors<Full, Op, Full::kUnroll, false>(operands, source_at + at, destination_at + at);
  }
  for (; at + kFull <= bytes; at += kFull) {
    fold_vectors<Full, Op, 1, false>(operands, source_at + at, destination_at + at);
  }
  if constexpr (kFull > 16) {
    for (; at + 16 <= bytes; at += 16) {
      fold_vectors<Short, Op, 1, false>(operands, source_at + at, destination_at + at);
    }
  }
  for (; at < bytes; at += sizeof(typename E::Stored)) {
    fold_one<E, Op>(operands, source_at + at, destination_at + at);
  }
}

/// The same for any shape, out of line: for more than two sources, scaled ones, and the parts that
/// fold_around_cache does not stream.
template <class E, class Op>
HWY_NOINLINE void fold_any(const Move& move, size_t source_at, size_t destination_at,
                           size_t bytes) {
  fold_range<E, Op>(move, source_at, destination_at, bytes);
}

template <class E, class Op, class Operands>
HWY_INLINE size_t stream_blocks(const Operands& operands, size_t at, size_t bytes) {
  using Full = Lanes<E, kFull>;
  constexpr size_t kBlock = Full::kUnroll * kFull;
  for (; at + kBlock <= bytes; at += kBlock) {
    fold_vectors<Full, Op, Full::kUnroll, true>(operands, at, at);
  }
  return at;
}

/// Folds whole blocks around the cache, from offset `at`, where every destination starts a cache
/// line; returns the offset where it stopped.
template <class E, class Op>
HWY_NOINLINE size_t fold_blocks(const Move& move, size_t at, size_t bytes) {
  if constexpr (has_fixed_shapes<E, Op>()) {
    if (is_shape<2, 1>(move)) return stream_blocks<E, Op>(FixedOperands<2, 1>(move), at, bytes);
    if (is_shape<2, 2>(move)) return stream_blocks<E, Op>(FixedOperands<2, 2>(move), at, bytes);
  }
  return stream_blocks<E, Op>(move, at, bytes);
}

/// The loops of a type and an operator, for code that is independent of both.
struct Loops {
  void (*any)(const Move& move, size_t source_at, size_t destination_at, size_t bytes);
  size_t (*blocks)(const Move& move, size_t at, size_t bytes);
  size_t element_bytes;
};

template <class E, class Op>
inline constexpr Loops kLoops = {.any = fold_any<E, Op>,
                                 .blocks = fold_blocks<E, Op>,
                                 .element_bytes = sizeof(typename E::Stored)};

HWY_INLINE size_t bytes_to_line(const std::byte* pointer) {
  return -reinterpret_cast<uintptr_t>(pointer) % kLine;
}

/// Copies around the cache; copies the ends, which share lines with other data, through it.
inline HWY_NOINLINE void stream_copy(std::byte* to, const std::byte* from, size_t bytes) {
  using L = Lanes<Native<uint8_t>, kFull>;
  constexpr size_t kBlock = 4 * kFull;
  const size_t head = HWY_MIN(bytes_to_line(to), bytes);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kBlock <= bytes; at += kBlock) {
    typename L::V v[4];
    for (int u = 0; u < 4; ++u) v[u] = L::load(from + at + u * kFull);
    for (int u = 0; u < 4; ++u) L::stream(v[u], to + at + u * kFull);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

/// Prefetches lines for writing. Stores leave the store buffer in order, and a store to a line that
/// another core holds delays those after it; prefetches run in parallel.
HWY_INLINE void prefetch_for_writing(const std::byte* at, size_t bytes) {
#if defined(__x86_64__)
  for (size_t line = 0; line < bytes; line += kLine) asm volatile("prefetchw %0" : : "m"(at[line]));
#else
  for (size_t line = 0; line < bytes; line += kLine) __builtin_prefetch(at + line, 1);
#endif
}

/// Copies through the cache, most often into a slot, whose lines its reader holds: prefetches them
/// before the first store. On two Zen 3 cores, 2 KiB, that is 1.4 times as fast where cores are far
/// apart and 5 % slower where they are near. memcpy, which uses `rep movsb` there, does not do it.
inline HWY_NOINLINE void cached_copy(std::byte* to, const std::byte* from, size_t bytes) {
  using L = Lanes<Native<uint8_t>, kFull>;
  constexpr size_t kBlock = 4 * kFull;
  if (bytes > kLine) prefetch_for_writing(to, HWY_MIN(bytes, kWriteAhead));
  if (bytes < kSmallestStreamed) {
    std::memcpy(to, from, bytes);
    return;
  }
  // Vectors that straddle two lines are stored twice, so the destination is aligned first.
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kFull;
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kBlock <= bytes; at += kBlock) {
    typename L::V v[4];
    prefetch_for_writing(to + at + kWriteAhead, kBlock);
    for (int u = 0; u < 4; ++u) v[u] = L::load(from + at + u * kFull);
    for (int u = 0; u < 4; ++u) L::store(v[u], to + at + u * kFull);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

/// Copies the bytes of one source to every destination that is not that source.
inline HWY_NOINLINE void copy(const Move& move, size_t bytes) {
  const std::byte* source = move.sources[0];
  if (bytes <= kLine && move.destination_count == 1) {
    if (move.destinations[0] != source) std::memcpy(move.destinations[0], source, bytes);
    return;
  }
  const uint32_t streamed = bytes >= kSmallestStreamed ? move.nontemporal : 0;
  // Tile by tile for several destinations, so that the source is read from memory once.
  const size_t step = move.destination_count == 1 ? bytes : kTile;
  for (size_t at = 0; at < bytes; at += step) {
    const size_t now = HWY_MIN(step, bytes - at);
    for (uint32_t j = 0; j < move.destination_count; ++j) {
      if (move.destinations[j] == source) continue;
      if (j < streamed) {
        stream_copy(move.destinations[j] + at, source + at, now);
      } else {
        cached_copy(move.destinations[j] + at, source + at, now);
      }
    }
  }
  if (streamed > 0) hwy::FlushStream();
}

/// Whether the same number of whole elements leads every destination to the start of a cache line.
inline bool align_together(const Move& move, size_t element_bytes) {
  const size_t head = bytes_to_line(move.destinations[0]);
  if (head % element_bytes != 0) return false;
  for (uint32_t j = 1; j < move.destination_count; ++j) {
    if (bytes_to_line(move.destinations[j]) != head) return false;
  }
  return true;
}

inline void fold_streamed(const Move& move, const Loops& loops, size_t bytes) {
  const size_t head = HWY_MIN(bytes_to_line(move.destinations[0]), bytes);
  loops.any(move, 0, 0, head);
  const size_t at = loops.blocks(move, head, bytes);
  loops.any(move, at, at, bytes - at);
}

/// For destinations with different offsets within a line: folds into a tile in L1, then streams the
/// tile to each of them.
inline void fold_tiles(const Move& move, const Loops& loops, size_t bytes) {
  alignas(kLine) std::byte tile[kTile];
  std::byte* const tiles[1] = {tile};
  Move to_tile = move;
  to_tile.destinations = tiles;
  to_tile.destination_count = 1;
  for (size_t at = 0; at < bytes; at += kTile) {
    const size_t now = HWY_MIN(kTile, bytes - at);
    loops.any(to_tile, at, 0, now);
    for (uint32_t j = 0; j < move.destination_count; ++j) {
      stream_copy(move.destinations[j] + at, tile, now);
    }
  }
}

/// For destinations of which some are streamed and others are not: folds into the latter, and
/// streams from the first of them while it is in L1.
inline void fold_mixed(const Move& move, const Loops& loops, size_t bytes) {
  Move cached = move;
  cached.destinations += move.nontemporal;
  cached.destination_count -= move.nontemporal;
  for (size_t at = 0; at < bytes; at += kTile) {
    const size_t now = HWY_MIN(kTile, bytes - at);
    loops.any(cached, at, at, now);
    for (uint32_t j = 0; j < move.nontemporal; ++j) {
      stream_copy(move.destinations[j] + at, cached.destinations[0] + at, now);
    }
  }
}

inline HWY_NOINLINE void fold_around_cache(const Move& move, const Loops& loops, size_t bytes) {
  if (move.nontemporal < move.destination_count) {
    fold_mixed(move, loops, bytes);
  } else if (align_together(move, loops.element_bytes)) {
    fold_streamed(move, loops, bytes);
  } else {
    fold_tiles(move, loops, bytes);
  }
  hwy::FlushStream();
}

HWY_INLINE bool goes_around_cache(const Move& move, size_t bytes) {
  return move.nontemporal != 0 && bytes >= kSmallestStreamed;
}

/// A sum of integers that is divided. There are no vector divisions of integers.
template <class E>
HWY_NOINLINE void fold_divided(const Move& move) {
  if (move.factors != nullptr) return fold_elements<E, ScaledSum>(move);
  fold_elements<E, Sum>(move);
}

template <class E, class Op>
struct VectorKernel {
  static void move(const Move& move) {
    const size_t bytes = move.count * sizeof(typename E::Stored);
    if constexpr (std::is_same_v<Op, Sum>) {
      if constexpr (std::is_integral_v<typename E::Folded>) {
        if (move.divisor > 1) return fold_divided<E>(move);
      }
      if (move.factors != nullptr) return scaled(move, bytes);
    }
    if (move.source_count == 1 && move.divisor <= 1) return copy(move, bytes);
    if (goes_around_cache(move, bytes)) return fold_around_cache(move, kLoops<E, Op>, bytes);
    if constexpr (has_fixed_shapes<E, Op>()) {
      if (is_shape<2, 1>(move)) return fold_range<E, Op>(FixedOperands<2, 1>(move), 0, 0, bytes);
      if (is_shape<2, 2>(move)) return fold_range<E, Op>(FixedOperands<2, 2>(move), 0, 0, bytes);
    }
    fold_any<E, Op>(move, 0, 0, bytes);
  }

 private:
  static HWY_NOINLINE void scaled(const Move& move, size_t bytes) {
    if (goes_around_cache(move, bytes)) return fold_around_cache(move, kLoops<E, ScaledSum>, bytes);
    fold_any<E, ScaledSum>(move, 0, 0, bytes);
  }
};

// Kernels that are aliases of others.

template <class E>
struct VectorKernel<E, Avg> : VectorKernel<E, Sum> {};

/// Sums and products of signed integers use the unsigned code; divisions do not.
template <std::signed_integral T>
struct VectorKernel<Native<T>, Sum> {
  static void move(const Move& move) {
    if (move.divisor > 1) return fold_divided<Native<T>>(move);
    VectorKernel<Native<std::make_unsigned_t<T>>, Sum>::move(move);
  }
};
template <std::signed_integral T>
struct VectorKernel<Native<T>, Prod> : VectorKernel<Native<std::make_unsigned_t<T>>, Prod> {};

/// There are no vector divisions of integers, and averages of them are rare.
template <std::integral T>
struct VectorKernel<Averaged<T>, Avg> {
  static void move(const Move& move) {
    if (move.divisor <= 1) return VectorKernel<Native<T>, Sum>::move(move);
    fold_elements<Averaged<T>, Avg>(move);
  }
};

/// Bitwise operators work on bytes, whatever the size of an element.
template <class T, class Op>
struct BytewiseKernel {
  static void move(const Move& move) {
    Move bytes = move;
    bytes.count *= sizeof(T);
    VectorKernel<Native<uint8_t>, Op>::move(bytes);
  }
};
template <class T, Bitwise Op>
requires(!std::is_same_v<T, uint8_t>) struct VectorKernel<Native<T>, Op> : BytewiseKernel<T, Op> {
};

/// On bools all operators are logical. Scaled ones are rare.
template <>
struct VectorKernel<Bool, Sum> {
  static void move(const Move& move) {
    if (move.factors != nullptr) return fold_elements<Bool, ScaledSum>(move);
    VectorKernel<Bool, BitOr>::move(move);
  }
};
template <>
struct VectorKernel<Bool, Max> : VectorKernel<Bool, BitOr> {};
template <>
struct VectorKernel<Bool, Prod> : VectorKernel<Bool, BitAnd> {};
template <>
struct VectorKernel<Bool, Min> : VectorKernel<Bool, BitAnd> {};

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#endif
