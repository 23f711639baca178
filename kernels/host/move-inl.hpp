// One move by vectors, for the instruction set that foreach_target.h is compiling for: which loop a
// call takes, how its ends are handled, and how results get round the cache. Knows nothing of types
// and operators beyond lanes-inl.hpp.
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
inline constexpr size_t kTile = 8192;             // results waiting to be streamed: a corner of L1
inline constexpr size_t kWriteAhead = 1024;       // bytes between a store and the prefetch for it
inline constexpr size_t kSmallestStreamed = 512;  // below, the detour costs more than the cache

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

/// Folds kUnroll vectors; offsets in bytes. Loads everything before it stores anything: a
/// destination may be a source.
template <class L, class Op, int kUnroll, bool kStream, class Operands>
HWY_INLINE void fold_vectors(const Operands& operands, size_t source_at, size_t destination_at) {
  typename L::V folded[kUnroll];
  for (int u = 0; u < kUnroll; ++u) {
    folded[u] = L::load(operands.sources[0] + source_at + u * L::kBytes);
  }
  for (uint32_t s = 1; s < operands.source_count; ++s) {
    const std::byte* source = operands.sources[s] + source_at;
    for (int u = 0; u < kUnroll; ++u) {
      folded[u] = L::template apply<Op>(folded[u], L::load(source + u * L::kBytes));
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

/// Folds `bytes`, through the cache: several vectors at a time, one, a short one, then element by
/// element.
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

/// The same for any shape, out of line: for the ends of streamed moves and where two sources are
/// not the case.
template <class E, class Op>
HWY_NOINLINE void fold_any(const Move& move, size_t source_at, size_t destination_at,
                           size_t bytes) {
  fold_range<E, Op>(move, source_at, destination_at, bytes);
}

HWY_INLINE size_t bytes_to_line(const std::byte* pointer) {
  return -reinterpret_cast<uintptr_t>(pointer) % kLine;
}

/// Copies round the cache; the ends, which share lines with others, through it.
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

/// Asks for lines that will be stored to. Stores leave the store buffer one after the other, and
/// one to a line that another core holds waits for it; prefetches are fetched side by side.
HWY_INLINE void prefetch_for_writing(const std::byte* at, size_t bytes) {
#if defined(__x86_64__)
  for (size_t line = 0; line < bytes; line += kLine) asm volatile("prefetchw %0" : : "m"(at[line]));
#else
  for (size_t line = 0; line < bytes; line += kLine) __builtin_prefetch(at + line, 1);
#endif
}

/// Copies through the cache, most often into a slot, whose lines its reader holds: they are asked
/// for before the first store. Two Zen 3 cores, 2 KiB: 1.4 times as fast where cores are far apart,
/// a twentieth slower where they are near. memcpy, which uses `rep movsb` there, does not do it.
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

/// The bytes of one source to every destination that is not that source.
inline HWY_NOINLINE void copy(const Move& move, size_t bytes) {
  const std::byte* source = move.sources[0];
  if (bytes <= kLine && move.destination_count == 1) {
    if (move.destinations[0] != source) std::memcpy(move.destinations[0], source, bytes);
    return;
  }
  const uint32_t streamed = bytes >= kSmallestStreamed ? move.nontemporal : 0;
  // Tile by tile where there are several destinations, so that the source is read from memory once.
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

/// Whether whole elements lead every destination to the start of a cache line at once.
template <class E>
HWY_INLINE bool align_together(const Move& move) {
  const size_t head = bytes_to_line(move.destinations[0]);
  if (head % sizeof(typename E::Stored) != 0) return false;
  for (uint32_t j = 1; j < move.destination_count; ++j) {
    if (bytes_to_line(move.destinations[j]) != head) return false;
  }
  return true;
}

/// Destinations that start differently within a line: fold into a tile in L1, then stream the tile
/// to each of them.
template <class E, class Op>
HWY_NOINLINE void fold_tiles(const Move& move, size_t bytes) {
  alignas(kLine) std::byte tile[kTile];
  std::byte* const tiles[1] = {tile};
  const Move to_tile = {.sources = move.sources,
                        .destinations = tiles,
                        .source_count = move.source_count,
                        .destination_count = 1,
                        .count = 0,
                        .divisor = move.divisor,
                        .nontemporal = 0};
  for (size_t at = 0; at < bytes; at += kTile) {
    const size_t now = HWY_MIN(kTile, bytes - at);
    fold_any<E, Op>(to_tile, at, 0, now);
    for (uint32_t j = 0; j < move.destination_count; ++j) {
      stream_copy(move.destinations[j] + at, tile, now);
    }
  }
  hwy::FlushStream();
}

template <class E, class Op, class Operands>
HWY_NOINLINE void fold_streamed(const Move& move, const Operands& operands, size_t bytes) {
  using Full = Lanes<E, kFull>;
  constexpr size_t kBlock = Full::kUnroll * kFull;
  const size_t head = HWY_MIN(bytes_to_line(move.destinations[0]), bytes);
  fold_any<E, Op>(move, 0, 0, head);
  size_t at = head;
  for (; at + kBlock <= bytes; at += kBlock) {
    fold_vectors<Full, Op, Full::kUnroll, true>(operands, at, at);
  }
  fold_any<E, Op>(move, at, at, bytes - at);
  hwy::FlushStream();
}

/// Some destinations round the cache, the others (slots, which a peer reads at once) through it:
/// fold into those, and stream from the first of them while it is in L1.
template <class E, class Op>
HWY_NOINLINE void fold_mixed(const Move& move, size_t bytes) {
  Move cached = move;
  cached.destinations += move.nontemporal;
  cached.destination_count -= move.nontemporal;
  for (size_t at = 0; at < bytes; at += kTile) {
    const size_t now = HWY_MIN(kTile, bytes - at);
    fold_any<E, Op>(cached, at, at, now);
    for (uint32_t j = 0; j < move.nontemporal; ++j) {
      stream_copy(move.destinations[j] + at, cached.destinations[0] + at, now);
    }
  }
  hwy::FlushStream();
}

template <class E, class Op, class Operands>
HWY_INLINE void fold(const Move& move, const Operands& operands, size_t bytes) {
  if (move.nontemporal == 0 || bytes < kSmallestStreamed) {
    if constexpr (std::is_same_v<Operands, Move>) {
      fold_any<E, Op>(move, 0, 0, bytes);
    } else {
      fold_range<E, Op>(operands, 0, 0, bytes);
    }
  } else if (move.nontemporal < move.destination_count) {
    fold_mixed<E, Op>(move, bytes);
  } else if (align_together<E>(move)) {
    fold_streamed<E, Op>(move, operands, bytes);
  } else {
    fold_tiles<E, Op>(move, bytes);
  }
}

template <class E, class Op>
struct VectorKernel {
  static void move(const Move& move) {
    const size_t bytes = move.count * sizeof(typename E::Stored);
    if (move.source_count == 1 && move.divisor <= 1) return copy(move, bytes);
    if constexpr (!std::is_floating_point_v<typename E::Folded>) {
      // There are no vector divisions of integers, and averages of them are rare.
      if (move.divisor > 1) return divided(move);
    }
    if (move.source_count == 2 && move.destination_count == 1) {
      fold<E, Op>(move, FixedOperands<2, 1>(move), bytes);
    } else if (move.source_count == 2 && move.destination_count == 2) {
      fold<E, Op>(move, FixedOperands<2, 2>(move), bytes);
    } else {
      fold<E, Op>(move, move, bytes);
    }
  }

 private:
  static HWY_NOINLINE void divided(const Move& move) {
    constexpr size_t kSize = sizeof(typename E::Stored);
    for (size_t i = 0; i < move.count; ++i) fold_one<E, Op>(move, i * kSize, i * kSize);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#endif
