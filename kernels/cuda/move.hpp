// A move by many threads at once: k sources to m destinations, 16 bytes at a time. Every thread of
// a block, or of a grid, calls it with its own Share. No thread waits for another, so a persistent
// kernel, a kernel of its own and a plain loop over threads on the host all run the same code. The
// arithmetic is element.hpp's, as in the scalar reference. It ends without a barrier or fence: the
// caller publishes the result.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/divide_by.hpp"
#include "kernels/cuda/share.hpp"
#include "kernels/element.hpp"

namespace rondo::kernels::cuda {

/// 16 bytes in registers: members are indexed only by constants.
struct alignas(kVectorBytes) Vector {
  uint32_t words[4];
};

template <size_t kBytes>
using Bits = std::conditional_t<
    kBytes == 1, uint8_t,
    std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

/// One access, because the compiler may assume the alignment.
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

template <class T>
RONDO_DEVICE void load_parts(Vector& raw, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < kVectorBytes; at += sizeof(T)) {
    if (at >= bytes) break;
    if constexpr (sizeof(T) == 8) {
      const auto part = load_aligned<uint64_t>(from + at);
      raw.words[at / 4] = static_cast<uint32_t>(part);
      raw.words[at / 4 + 1] = static_cast<uint32_t>(part >> 32);
    } else {
      raw.words[at / 4] |= static_cast<uint32_t>(load_aligned<T>(from + at)) << (at % 4 * 8);
    }
  }
}
template <class T>
RONDO_DEVICE void store_parts(std::byte* to, const Vector& raw, size_t bytes) {
  for (size_t at = 0; at < kVectorBytes; at += sizeof(T)) {
    if (at >= bytes) break;
    if constexpr (sizeof(T) == 8) {
      store_aligned(to + at, raw.words[at / 4] | static_cast<uint64_t>(raw.words[at / 4 + 1])
                                                     << 32);
    } else {
      store_aligned(to + at, static_cast<T>(raw.words[at / 4] >> (at % 4 * 8)));
    }
  }
}

/// The store of a whole vector. On a GPU to a global address, and past the L1: on an H200 sums of two
/// buffers move 4 % more by the first, and 1 % by the second (bench/results).
RONDO_DEVICE inline void store_vector(std::byte* to, const Vector& raw) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(raw.words[0]), "r"(raw.words[1]), "r"(raw.words[2]), "r"(raw.words[3])
               : "memory");
#else
  store_aligned(to, raw);
#endif
}

/// Views a vector as elements of type Stored.
template <class Stored>
struct InVector {
  static constexpr int kElements = kVectorBytes / sizeof(Stored);
  static constexpr int kInWord = sizeof(Stored) < 4 ? 4 / sizeof(Stored) : 1;

  RONDO_DEVICE static Vector load(const std::byte* from, Access) {
    return load_aligned<Vector>(from);
  }
  RONDO_DEVICE static void store(std::byte* to, const Vector& raw, Access) {
    store_vector(to, raw);
  }
  RONDO_DEVICE static Stored get(const Vector& raw, int i) {
    if constexpr (sizeof(Stored) == 8) {
      return std::bit_cast<Stored>(raw.words[2 * i] | static_cast<uint64_t>(raw.words[2 * i + 1])
                                                          << 32);
    } else {
      const uint32_t word = raw.words[i / kInWord] >> (i % kInWord * 8 * sizeof(Stored));
      return std::bit_cast<Stored>(static_cast<Bits<sizeof(Stored)>>(word));
    }
  }
  /// REQUIRES: `raw` was zero there.
  RONDO_DEVICE static void put(Vector& raw, int i, Stored value) {
    const auto bits = std::bit_cast<Bits<sizeof(Stored)>>(value);
    if constexpr (sizeof(Stored) == 8) {
      raw.words[2 * i] = static_cast<uint32_t>(bits);
      raw.words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else {
      raw.words[i / kInWord] |= static_cast<uint32_t>(bits) << (i % kInWord * 8 * sizeof(Stored));
    }
  }
};

// Not inlined on the device: every loop contains them, few operands need them.
[[gnu::noinline]] RONDO_DEVICE inline Vector load_narrow(const std::byte* from, Access access) {
  Vector raw = {};
  if (access.width == 8) {
    load_parts<uint64_t>(raw, from, access.bytes);
  } else if (access.width == 4) {
    load_parts<uint32_t>(raw, from, access.bytes);
  } else if (access.width == 2) {
    load_parts<uint16_t>(raw, from, access.bytes);
  } else {
    load_parts<uint8_t>(raw, from, access.bytes);
  }
  return raw;
}
[[gnu::noinline]] RONDO_DEVICE inline void store_narrow(std::byte* to, Vector raw, Access access) {
  if (access.width == 8) return store_parts<uint64_t>(to, raw, access.bytes);
  if (access.width == 4) return store_parts<uint32_t>(to, raw, access.bytes);
  if (access.width == 2) return store_parts<uint16_t>(to, raw, access.bytes);
  store_parts<uint8_t>(to, raw, access.bytes);
}

/// The same for a partial vector at any address: the device traps on an access wider than the
/// alignment. Missing bytes are zero.
template <class Stored>
struct InPiece : InVector<Stored> {
  RONDO_DEVICE static Vector load(const std::byte* from, Access access) {
    if (access.width == kVectorBytes) return load_aligned<Vector>(from);
    return load_narrow(from, access);
  }
  RONDO_DEVICE static void store(std::byte* to, Vector raw, Access access) {
    if (access.width == kVectorBytes) return store_vector(to, raw);
    store_narrow(to, raw, access);
  }
};

/// Whether E converts the values of a word at once, the first of them in the lowest bits.
template <class E>
concept WidensWords = requires(uint32_t word, typename E::Folded* values) {
  E::widen_word(word, values);
};
template <class E>
concept NarrowsWords = requires(const typename E::Folded* values) {
  { E::narrow_word(values) } -> std::same_as<uint32_t>;
};

template <class E, class Place>
RONDO_DEVICE void widen_all(const Vector& raw, typename E::Folded (&values)[Place::kElements]) {
  if constexpr (WidensWords<E>) {
    for (int word = 0; word < 4; ++word) {
      E::widen_word(raw.words[word], values + word * Place::kInWord);
    }
  } else {
    for (int i = 0; i < Place::kElements; ++i) values[i] = E::widen(Place::get(raw, i));
  }
}
template <class E, class Place>
RONDO_DEVICE Vector narrow_all(const typename E::Folded (&values)[Place::kElements]) {
  Vector raw = {};
  if constexpr (NarrowsWords<E>) {
    for (int word = 0; word < 4; ++word) {
      raw.words[word] = E::narrow_word(values + word * Place::kInWord);
    }
  } else {
    for (int i = 0; i < Place::kElements; ++i) Place::put(raw, i, E::narrow(values[i]));
  }
  return raw;
}

/// The operands that most moves have, taken out of the arrays once: the compiler must take it that a
/// store to a destination changes those, and would read them anew before each step's loads.
struct FirstOperands {
  const std::byte *source, *second;  // the latter null where there is one
  std::byte* destination;

  RONDO_DEVICE explicit FirstOperands(const Move& move)
      : source(move.sources[0]),
        second(move.source_count > 1 ? move.sources[1] : nullptr),
        destination(move.destinations[0]) {}
};

/// Narrows the results of fold_places() and stores them at every destination.
template <class E, class Place, int kUnroll, class Folded>
RONDO_DEVICE void store_places(const Move& move, const FirstOperands& first, size_t at,
                               size_t stride, Access access,
                               const Folded (&folded)[kUnroll][Place::kElements]) {
  Vector raw[kUnroll];
  for (int u = 0; u < kUnroll; ++u) raw[u] = narrow_all<E, Place>(folded[u]);
  std::byte* to = first.destination;
  for (uint32_t j = 1;; ++j) {
    for (int u = 0; u < kUnroll; ++u) {
      Place::store(to + at + static_cast<size_t>(u) * stride, raw[u], access);
    }
    if (j == move.destination_count) break;
    to = move.destinations[j];
  }
}

/// Folds kUnroll places, `stride` bytes apart, from `at` on. Loads everything before it stores
/// anything, and requests the next source while it folds one: 2 * kUnroll loads are in flight. Op
/// ScaledSum covers the rare kinds of sums: with factors or a divisor, the one of `divided`. Op Avg is
/// a sum with a divisor.
template <class E, class Op, class Place, int kUnroll, class Folded = typename E::Folded>
RONDO_DEVICE void fold_places(const Move& move, const FirstOperands& first,
                              const DivideBy<Folded>& divided, size_t at, size_t stride,
                              Access access) {
  constexpr bool kRare = std::is_same_v<Op, ScaledSum>;
  constexpr bool kDivides = std::is_same_v<Op, Avg> || (kRare && !std::is_same_v<Folded, bool>);
  constexpr int kElements = Place::kElements;
  using Raws = Vector[kUnroll];
  Raws even, odd;  // of sources with such numbers
  [[maybe_unused]] Folded even_factor{}, odd_factor{};
  Folded folded[kUnroll][kElements];

  const auto load_from = [&](Raws& raw, Folded& factor, uint32_t source, const std::byte* from) {
    for (int u = 0; u < kUnroll; ++u) {
      raw[u] = Place::load(from + at + static_cast<size_t>(u) * stride, access);
    }
    if constexpr (kRare) {
      if (move.factors != nullptr) factor = factor_as<Folded>(move.factors[source]);
    }
  };
  const auto load = [&](Raws& raw, Folded& factor, uint32_t source) {
    load_from(raw, factor, source, move.sources[source]);
  };
  // `is_first`: there is no value to fold with yet.
  const auto fold = [&](const Raws& raw, Folded factor, auto is_first) {
    for (int u = 0; u < kUnroll; ++u) {
      Folded values[kElements];
      widen_all<E, Place>(raw[u], values);
      for (int i = 0; i < kElements; ++i) {
        Folded value = values[i];
        if constexpr (kRare) {
          if (move.factors != nullptr) value = Prod::apply(value, factor);
        }
        if constexpr (is_first) {
          folded[u][i] = value;
        } else {
          folded[u][i] = Op::apply(folded[u][i], value);
        }
      }
    }
  };
  constexpr std::true_type kFirst;
  constexpr std::false_type kAnother;

  load_from(even, even_factor, 0, first.source);
  if constexpr (kUnroll == 1) {  // what is left of a move: less code counts more
    fold(even, even_factor, kFirst);
    for (uint32_t source = 1; source < move.source_count; ++source) {
      load(odd, odd_factor, source);
      fold(odd, odd_factor, kAnother);
    }
  } else if (move.source_count == 1) {
    fold(even, even_factor, kFirst);
  } else {
    // Two buffers in turn, and no load under a condition: the compiler would merge such a load with
    // what the buffer held, and issue it only after the previous source has arrived.
    load_from(odd, odd_factor, 1, first.second);
    fold(even, even_factor, kFirst);
    uint32_t source = 2;  // the next to load; `odd` holds the one before
    for (; source + 1 < move.source_count; source += 2) {
      load(even, even_factor, source);
      fold(odd, odd_factor, kAnother);
      load(odd, odd_factor, source + 1);
      fold(even, even_factor, kAnother);
    }
    if (source < move.source_count) {
      load(even, even_factor, source);
      fold(odd, odd_factor, kAnother);
      fold(even, even_factor, kAnother);
    } else {
      fold(odd, odd_factor, kAnother);
    }
  }
  if constexpr (kDivides) {
    if (move.divisor > 1) {
      for (auto& values : folded) {
        for (Folded& value : values) value = divided(value);
      }
    }
  }
  store_places<E, Place, kUnroll>(move, first, at, stride, access, folded);
}

RONDO_DEVICE inline Partition cut(const Move& move, size_t element_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(move.sources[0]);
  uintptr_t differences = 0;
  for (uint32_t s = 1; s < move.source_count; ++s) {
    differences |= reinterpret_cast<uintptr_t>(move.sources[s]) ^ first;
  }
  for (uint32_t j = 0; j < move.destination_count; ++j) {
    differences |= reinterpret_cast<uintptr_t>(move.destinations[j]) ^ first;
  }
  return partition(move.count, element_bytes, first, differences);
}

template <class Op>
inline constexpr bool kBitwise =
    std::is_same_v<Op, BitAnd> || std::is_same_v<Op, BitOr> || std::is_same_v<Op, BitXor>;

/// Small integers side by side in a word: bitwise operators do not care about element borders, and
/// sums do not carry into the neighbour.
template <class T>
struct PackedSum {
  static constexpr uint32_t kTops = sizeof(T) == 1 ? 0x80808080u : 0x80008000u;
  static constexpr uint32_t apply(uint32_t a, uint32_t b) {
    return ((a & ~kTops) + (b & ~kTops)) ^ ((a ^ b) & kTops);
  }
};
/// Four bools, 0 or 1 each.
struct PackedBool {
  using Stored = uint32_t;
  using Folded = uint32_t;
  static constexpr uint32_t widen(uint32_t value) {
    return (((value & 0x7f7f7f7fu) + 0x7f7f7f7fu) | value) >> 7 & 0x01010101u;
  }
  static constexpr uint32_t narrow(uint32_t value) { return value; }
};

/// The element and operator that execute the loop defined by E and Op.
template <class E, class Op>
struct Loop {
  using Element = E;
  using Operator = Op;
};
template <class E, class Op>
requires(kBitwise<Op> && !std::is_same_v<E, Bool>) struct Loop<E, Op> {
  using Element = Native<uint32_t>;
  using Operator = Op;
};
template <class E>
requires(std::is_same_v<E, Native<uint8_t>> ||
         std::is_same_v<E, Native<uint16_t>>) struct Loop<E, Sum> {
  using Element = Native<uint32_t>;
  using Operator = PackedSum<typename E::Stored>;
};
template <>
struct Loop<Bool, Sum> {
  using Element = PackedBool;
  using Operator = BitOr;
};
template <>
struct Loop<Bool, Prod> {
  using Element = PackedBool;
  using Operator = BitAnd;
};
template <>
struct Loop<Bool, BitXor> {
  using Element = PackedBool;
  using Operator = BitXor;
};

template <class Op>
inline constexpr bool kPacked =
    std::is_same_v<Op, PackedSum<uint8_t>> || std::is_same_v<Op, PackedSum<uint16_t>>;

/// The number of vectors that a thread folds at a time: in sums, and for words, as many as
/// registers hold with accumulators and two sources; half of that elsewhere, to save compile time.
template <class E, class Op>
constexpr int vectors_at_once() {
  const int most = sizeof(typename E::Stored) == 1 ? 2 : 4;
  return std::is_same_v<Op, Sum> || kBitwise<Op> || kPacked<Op> ? most : most / 2;
}

/// This thread's share of a move. Not inlined on the device: there are some seventy of them, and
/// most of the compile time depends on how often fold_places() is in each.
template <class E, class Op>
[[gnu::noinline]] RONDO_DEVICE void fold(const Move& move, const Share& share) {
  using Element = typename Loop<E, Op>::Element;
  using Operator = typename Loop<E, Op>::Operator;
  using Stored = typename Element::Stored;
  constexpr size_t kElement = sizeof(typename E::Stored);
  constexpr int kUnroll = vectors_at_once<Element, Operator>();
  const DivideBy<typename Element::Folded> divided(move.divisor);
  const FirstOperands first(move);
  for_share<kUnroll>(
      cut(move, kElement), kElement, share,
      [&](size_t at) {
        fold_places<Element, Operator, InVector<Stored>, kUnroll>(move, first, divided, at,
                                                                  share.threads * kVectorBytes, {});
      },
      [&](size_t at, Access access) {
        fold_places<Element, Operator, InPiece<Stored>, 1>(move, first, divided, at, 0, access);
      });
}

/// One source: a byte copy, which preserves a NaN's bits.
[[gnu::noinline]] RONDO_DEVICE inline void copy(const Move& move, size_t element_bytes,
                                                const Share& share) {
  if (move.destination_count == 1 && move.destinations[0] == move.sources[0]) return;
  Move bytes = move;
  bytes.count *= element_bytes;
  const Partition p = cut(bytes, 1);
  const FirstOperands first(move);
  const auto each = [&]<class Place, int kUnroll>(Place, std::integral_constant<int, kUnroll>,
                                                  size_t at, Access access) {
    const size_t stride = share.threads * kVectorBytes;
    Vector raw[kUnroll];
    for (int u = 0; u < kUnroll; ++u) {
      raw[u] = Place::load(first.source + at + static_cast<size_t>(u) * stride, access);
    }
    std::byte* to = first.destination;
    for (uint32_t j = 1;; ++j) {
      if (to != first.source) {
        for (int u = 0; u < kUnroll; ++u) {
          Place::store(to + at + static_cast<size_t>(u) * stride, raw[u], access);
        }
      }
      if (j == move.destination_count) break;
      to = move.destinations[j];
    }
  };
  constexpr std::integral_constant<int, 8> kWhole;
  constexpr std::integral_constant<int, 1> kOne;
  for_share<kWhole>(
      p, 1, share, [&](size_t at) { each(InVector<uint8_t>{}, kWhole, at, {}); },
      [&](size_t at, Access access) { each(InPiece<uint8_t>{}, kOne, at, access); });
}

}  // namespace rondo::kernels::cuda
