// move_share() on the device: converts floats below 32 bits by instructions where they exist, and
// takes the minimum and maximum of fp32 by one. These equal half.hpp, float8.hpp and element.hpp in
// every bit but a NaN's, at a tenth of the cost; tests/kernels/cuda compares all patterns on a
// device. Two halves or bfloat16 of a word are rounded by one instruction. Widening a bfloat16 is a
// shift, as on the host.
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
  __device__ static uint32_t narrow_pair(Folded lower, Folded upper) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
    return pair;
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
  __device__ static uint32_t narrow_pair(Folded lower, Folded upper) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
    return pair;
  }
#else
  __device__ static Stored narrow(Folded value) { return BFloat16::narrow(value); }
#endif
};

/// An fp8 has the layout of the upper bits of an fp16, denormals included; the exponents' biases
/// differ by 8 in E4M3 and by 0 in E5M2. The narrowing instruction (from compute capability 8.9 on)
/// gives the largest value on overflow, where the types have NaN and infinity.
struct DeviceE4M3 {
  using Stored = uint8_t;
  using Folded = float;
  __device__ static Folded widen(Stored value) {
    const uint32_t sign = value & 0x80, magnitude = value & 0x7f;
    const float wide =
        DeviceHalf::widen(static_cast<uint16_t>(sign << 8 | magnitude << 7)) * 256.0f;
    return magnitude == 0x7f ? std::bit_cast<float>(0x7fc00000u) : wide;
  }
  __device__ static Stored narrow(Folded value) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    // A comparison with NaN is false, so a NaN stays a NaN.
    const bool overflows = value > 464.0f || value < -464.0f;
    return static_cast<Stored>(overflows ? pair | 0x7f : pair);
#else
    return E4M3::narrow(value);
#endif
  }
};

struct DeviceE5M2 {
  using Stored = uint8_t;
  using Folded = float;
  __device__ static Folded widen(Stored value) {
    return DeviceHalf::widen(static_cast<uint16_t>(value << 8));
  }
  __device__ static Stored narrow(Folded value) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    const bool overflows = value >= 61440.0f || value <= -61440.0f;
    return static_cast<Stored>(overflows ? (pair & 0x80) | 0x7c : pair);
#else
    return E5M2::narrow(value);
#endif
  }
};

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
