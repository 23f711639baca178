// Gradients to and from the two bytes in which they travel (--compress).
#pragma once

#include "rondo/types.hpp"
#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// wire = factor * gradient, rounded once to bfloat16 or fp16.
template <DataType kWire>
struct CompressKernel {
  float factor;
  size_t count;
  const float* gradients;
  uint16_t* wire;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= count) return;
    const float value = gradients[i] * factor;
    if constexpr (kWire == DataType::kBFloat16) {
      wire[i] = kernels::bfloat16_from_float(value);
    } else {
      wire[i] = kernels::half_from_float(value);
    }
  }
};

/// The other way, which is exact.
template <DataType kWire>
struct DecompressKernel {
  size_t count;
  const uint16_t* wire;
  float* gradients;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= count) return;
    if constexpr (kWire == DataType::kBFloat16) {
      gradients[i] = kernels::float_from_bfloat16(wire[i]);
    } else {
      gradients[i] = kernels::float_from_half(wire[i]);
    }
  }
};

}  // namespace rondo::trainer::cuda
