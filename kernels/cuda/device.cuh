// move_share() on the device: converts floats below 32 bits by instructions where they exist, and
// takes the minimum and maximum of fp32 by one. These equal half.hpp, float8.hpp and element.hpp in
// every bit but a NaN's, at a tenth of the cost; tests/kernels/cuda compares all patterns on a
// device. One instruction rounds two values, and widens two fp8. Widening a bfloat16 is a shift, as
// on the host.
#pragma once

#include "kernels/cuda/dispatch.hpp"

namespace rondo::kernels::cuda {

/// To nearest even; keeps denormals.
struct DeviceHalf {
  using Stored = uint16_t;
  using Folded = float;
  __device__ static Folded widen(Stored value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
  }
  __device__ static Stored narrow(Folded value) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  __device__ static uint32_t narrow_word(const Folded* values) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
    return word;
  }
#endif
};

/// To nearest even; keeps denormals.
struct DeviceBFloat16 {
  using Stored = uint16_t;
  using Folded = float;
  __device__ static Folded widen(Stored value) { return BFloat16::widen(value); }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  __device__ static Stored narrow(Folded value) {
    uint16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    return narrow;
  }
  __device__ static uint32_t narrow_word(const Folded* values) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
    return word;
  }
#else
  __device__ static Stored narrow(Folded value) { return BFloat16::narrow(value); }
#endif
};

/// Four values of E, E4M3 or E5M2, in a word, two at a time: widened to fp16, which holds them all,
/// and on. From compute capability 8.9 on; before it, as on the host.
template <class E>
struct DeviceFloat8 {
  using Stored = uint8_t;
  using Folded = float;
  static constexpr bool kIsE4M3 = std::is_same_v<E, E4M3>;
  static constexpr float kLast =
      kIsE4M3 ? 464.0f : 0x1.dffffep15f;  // the last one not rounded beyond

  __device__ static void widen_word(uint32_t word, Folded* values) {
    for (int i = 0; i < 4; i += 2) {
      const auto pair = static_cast<uint16_t>(word >> (8 * i));
#if __CUDA_ARCH__ >= 890
      uint32_t halves;
      if constexpr (kIsE4M3) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
      } else {
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(pair));
      }
      values[i] = DeviceHalf::widen(static_cast<uint16_t>(halves));
      values[i + 1] = DeviceHalf::widen(static_cast<uint16_t>(halves >> 16));
#else
      values[i] = E::widen(static_cast<uint8_t>(pair));
      values[i + 1] = E::widen(static_cast<uint8_t>(pair >> 8));
#endif
    }
  }
  __device__ static uint32_t narrow_word(const Folded* values) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i += 2) {
#if __CUDA_ARCH__ >= 890
      uint16_t pair;
      if constexpr (kIsE4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
            : "=h"(pair)
            : "f"(values[i + 1]), "f"(values[i]));
      } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
            : "=h"(pair)
            : "f"(values[i + 1]), "f"(values[i]));
      }
      word |= uint32_t{pair} << (8 * i);
#else
      word |= uint32_t{E::narrow(values[i])} << (8 * i);
      word |= uint32_t{E::narrow(values[i + 1])} << (8 * i + 8);
#endif
    }
#if __CUDA_ARCH__ >= 890
    // On overflow the instruction gives the largest value. The next pattern is E4M3's NaN, and E5M2's
    // infinity. A comparison with NaN is false, so a NaN stays as it is.
    for (int i = 0; i < 4; ++i) word += fabsf(values[i]) > kLast ? 1u << (8 * i) : 0;
#endif
    return word;
  }
};
using DeviceE4M3 = DeviceFloat8<E4M3>;
using DeviceE5M2 = DeviceFloat8<E5M2>;

/// Min and Max of fp32: one instruction, where element.hpp's takes some ten, with branches. NaN if
/// either operand is one; -0 < +0.
struct DeviceMin {
  __device__ static float apply(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
#else
    return Min::apply(a, b);
#endif
  }
};
struct DeviceMax {
  __device__ static float apply(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float greatest;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greatest) : "f"(a), "f"(b));
    return greatest;
#else
    return Max::apply(a, b);
#endif
  }
};
template <class E>
requires std::is_same_v<typename E::Folded, float>
struct Loop<E, Min> {
  using Element = E;
  using Operator = DeviceMin;
};
template <class E>
requires std::is_same_v<typename E::Folded, float>
struct Loop<E, Max> {
  using Element = E;
  using Operator = DeviceMax;
};

struct DeviceFloats {
  using Fp16 = DeviceHalf;
  using Bf16 = DeviceBFloat16;
  using Fp8E4M3 = DeviceE4M3;
  using Fp8E5M2 = DeviceE5M2;
};

}  // namespace rondo::kernels::cuda
