// A move by many threads at once: k sources to m destinations, 16 bytes at a time. Called by every
// thread of a block, or of a grid, with its own Share; no thread waits for another, so a persistent
// kernel, a kernel of its own and a plain loop over threads on the host all walk this very code.
// Arithmetic is element.hpp's, the scalar reference's. Ends with no barrier and no fence: whoever
// hands the result over does that.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/share.hpp"
#include "kernels/element.hpp"

namespace rondo::kernels::cuda {

/// 16 bytes in registers: no member is ever indexed by anything but a constant.
struct alignas(kVectorBytes) Vector {
  uint32_t words[4];
};

template <size_t kBytes>
using Bits = std::conditional_t<
    kBytes == 1, uint8_t,
    std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

/// One access, because the compiler is told that it may be one.
template <class T>
RONDO_DEVICE T load_aligned(const std::byte* from) {
  T value;
  std::memcpy(&value, __builtin_assume_aligned(from, sizeof(T)), sizeof(T));
  return value;
}
template <class T>
RONDO_DEVICE void store_aligned(std::byte* to, const T& value) {
  std::memcpy(__builtin_assume_aligned(to, sizeof(T)), &value, sizeof(T));
}

/// A vector as elements of type Stored.
template <class Stored>
struct InVector {
  using Raw = Vector;
  static constexpr int kElements = kVectorBytes / sizeof(Stored);
  static constexpr int kInWord = sizeof(Stored) < 4 ? 4 / sizeof(Stored) : 1;
  static constexpr size_t kBytes = kVectorBytes;

  RONDO_DEVICE static Raw load(const std::byte* from, bool) { return load_aligned<Vector>(from); }
  RONDO_DEVICE static void store(std::byte* to, const Raw& raw, bool) { store_aligned(to, raw); }
  RONDO_DEVICE static Stored get(const Raw& raw, int i) {
    if constexpr (sizeof(Stored) == 8) {
      return std::bit_cast<Stored>(raw.words[2 * i] | static_cast<uint64_t>(raw.words[2 * i + 1])
                                                          << 32);
    } else {
      const uint32_t word = raw.words[i / kInWord] >> (i % kInWord * 8 * sizeof(Stored));
      return std::bit_cast<Stored>(static_cast<Bits<sizeof(Stored)>>(word));
    }
  }
  /// REQUIRES: `raw` was zero there.
  RONDO_DEVICE static void put(Raw& raw, int i, Stored value) {
    const auto bits = std::bit_cast<Bits<sizeof(Stored)>>(value);
    if constexpr (sizeof(Stored) == 8) {
      raw.words[2 * i] = static_cast<uint32_t>(bits);
      raw.words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else {
      raw.words[i / kInWord] |= static_cast<uint32_t>(bits) << (i % kInWord * 8 * sizeof(Stored));
    }
  }
};

/// A single element, which may lie anywhere. `aligned`: all operands are, to its size; the device
/// traps on a wider access than the address allows.
template <class Stored>
struct Single {
  struct Raw {
    Stored value;
  };
  static constexpr int kElements = 1;
  static constexpr size_t kBytes = sizeof(Stored);

  RONDO_DEVICE static Raw load(const std::byte* from, bool aligned) {
    if (aligned) return {load_aligned<Stored>(from)};
    Bits<kBytes> bits = 0;
    for (size_t b = 0; b < kBytes; ++b) {
      bits = static_cast<Bits<kBytes>>(bits | static_cast<Bits<kBytes>>(from[b]) << (8 * b));
    }
    return {std::bit_cast<Stored>(bits)};
  }
  RONDO_DEVICE static void store(std::byte* to, const Raw& raw, bool aligned) {
    if (aligned) return store_aligned(to, raw.value);
    const auto bits = std::bit_cast<Bits<kBytes>>(raw.value);
    for (size_t b = 0; b < kBytes; ++b) to[b] = static_cast<std::byte>(bits >> (8 * b));
  }
  RONDO_DEVICE static Stored get(const Raw& raw, int) { return raw.value; }
  RONDO_DEVICE static void put(Raw& raw, int, Stored value) { raw.value = value; }
};

/// Folds kUnroll places, `stride` bytes apart from `at` on. Everything is loaded before anything is
/// stored, and the next source is on its way while one is folded: 2 * kUnroll loads are in flight.
/// Op ScaledSum stands for everything rare about sums: factors where there are any, and a divisor.
template <class E, class Op, class Place, int kUnroll>
RONDO_DEVICE void fold_places(const Move& move, size_t at, size_t stride, bool aligned) {
  using Folded = typename E::Folded;
  constexpr bool kRare = std::is_same_v<Op, ScaledSum>;
  constexpr int kElements = Place::kElements;
  typename Place::Raw raw[kUnroll], next[kUnroll];
  Folded folded[kUnroll][kElements];

  const auto load = [&](uint32_t source) {
    const std::byte* from = move.sources[source] + at;
    for (int u = 0; u < kUnroll; ++u) {
      next[u] = Place::load(from + static_cast<size_t>(u) * stride, aligned);
    }
  };
  // `first`: nothing to fold with yet.
  const auto fold = [&](uint32_t source, auto first) {
    [[maybe_unused]] Folded factor{};
    if constexpr (kRare) {
      if (move.factors != nullptr) factor = factor_as<Folded>(move.factors[source]);
    }
    for (int u = 0; u < kUnroll; ++u) {
      for (int i = 0; i < kElements; ++i) {
        Folded value = E::widen(Place::get(raw[u], i));
        if constexpr (kRare) {
          if (move.factors != nullptr) value = Prod::apply(value, factor);
        }
        if constexpr (first) {
          folded[u][i] = value;
        } else {
          folded[u][i] = Op::apply(folded[u][i], value);
        }
      }
    }
  };
  const auto take = [&] {
    for (int u = 0; u < kUnroll; ++u) raw[u] = next[u];
  };

  load(0);
  take();
  if (move.source_count > 1) load(1);
  fold(0, std::true_type{});
  for (uint32_t source = 1; source < move.source_count; ++source) {
    take();
    if (source + 1 < move.source_count) load(source + 1);
    fold(source, std::false_type{});
  }

  for (int u = 0; u < kUnroll; ++u) {
    raw[u] = {};
    for (int i = 0; i < kElements; ++i) {
      Folded value = folded[u][i];
      if constexpr (kRare && !std::is_same_v<Folded, bool>) {
        if (move.divisor > 1) value = divide(value, move.divisor);
      }
      Place::put(raw[u], i, E::narrow(value));
    }
  }
  for (uint32_t j = 0; j < move.destination_count; ++j) {
    std::byte* to = move.destinations[j] + at;
    for (int u = 0; u < kUnroll; ++u) {
      Place::store(to + static_cast<size_t>(u) * stride, raw[u], aligned);
    }
  }
}

/// The Partition of a move of elements of `element_bytes`, and whether single ones may be accessed
/// whole.
struct Cut {
  Partition parts;
  bool aligned;
};
RONDO_DEVICE inline Cut cut(const Move& move, size_t element_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(move.sources[0]);
  uintptr_t differences = 0;
  for (uint32_t s = 1; s < move.source_count; ++s) {
    differences |= reinterpret_cast<uintptr_t>(move.sources[s]) ^ first;
  }
  for (uint32_t j = 0; j < move.destination_count; ++j) {
    differences |= reinterpret_cast<uintptr_t>(move.destinations[j]) ^ first;
  }
  return {.parts = partition(move.count, element_bytes, first, differences),
          .aligned = (first | differences) % element_bytes == 0};
}

template <class Op>
inline constexpr bool kBitwise =
    std::is_same_v<Op, BitAnd> || std::is_same_v<Op, BitOr> || std::is_same_v<Op, BitXor>;

/// How many vectors of E a thread folds at a time: as many as registers hold, with accumulators and
/// two sources, in sums; half of that elsewhere, for the time to compile. 0: integers are divided
/// and scaled one by one, as on the host.
template <class E, class Op>
constexpr int vectors_at_once() {
  if (std::is_same_v<Op, ScaledSum> && std::is_integral_v<typename E::Folded>) return 0;
  if (sizeof(typename E::Stored) == 1) return 1;
  return std::is_same_v<Op, Sum> ? 4 : 2;
}

/// This thread's share of a move. A function of its own on the device too: there are some seventy of
/// them, and nearly all of the time to compile goes into how often fold_places() is in each.
template <class E, class Op>
[[gnu::noinline]] RONDO_DEVICE void fold(const Move& move, const Share& share) {
  using Stored = typename E::Stored;
  // Bits are bits, however many make an element.
  using Wide = std::conditional_t<kBitwise<Op> && !std::is_same_v<E, Bool>, Native<uint32_t>, E>;
  constexpr int kUnroll = vectors_at_once<Wide, Op>();
  constexpr size_t kElement = sizeof(Stored);

  Cut c = cut(move, kElement);
  if constexpr (kUnroll == 0) {
    c.parts = {.head = move.count, .vectors = 0, .tail = 0};
  } else {
    for_share<kUnroll>(c.parts.vectors, share, [&](auto unroll, size_t i) {
      fold_places<Wide, Op, InVector<typename Wide::Stored>, unroll>(
          move, c.parts.head * kElement + i * kVectorBytes, share.threads * kVectorBytes, true);
    });
  }
  for_share<1>(c.parts.head + c.parts.tail, share, [&](auto unroll, size_t i) {
    if (i >= c.parts.head) i += move.count - c.parts.tail - c.parts.head;
    fold_places<E, Op, Single<Stored>, unroll>(move, i * kElement, kElement, c.aligned);
  });
}

/// One source, bytes as they are: a NaN arrives as it was.
[[gnu::noinline]] RONDO_DEVICE inline void copy(const Move& move, size_t element_bytes,
                                                const Share& share) {
  constexpr int kUnroll = 8;
  Move bytes = move;
  bytes.count *= element_bytes;
  const Cut c = cut(bytes, 1);
  const auto each = [&]<class Place>(Place, size_t begin, size_t count) {
    for_share<kUnroll>(count, share, [&](auto unroll, size_t i) {
      const size_t at = begin + i * Place::kBytes, stride = share.threads * Place::kBytes;
      typename Place::Raw raw[unroll];
      for (int u = 0; u < unroll; ++u) {
        raw[u] = Place::load(move.sources[0] + at + static_cast<size_t>(u) * stride, true);
      }
      for (uint32_t j = 0; j < move.destination_count; ++j) {
        if (move.destinations[j] == move.sources[0]) continue;
        for (int u = 0; u < unroll; ++u) {
          Place::store(move.destinations[j] + at + static_cast<size_t>(u) * stride, raw[u], true);
        }
      }
    });
  };
  each(Single<uint8_t>{}, 0, c.parts.head);
  each(InVector<uint8_t>{}, c.parts.head, c.parts.vectors);
  each(Single<uint8_t>{}, bytes.count - c.parts.tail, c.parts.tail);
}

}  // namespace rondo::kernels::cuda
