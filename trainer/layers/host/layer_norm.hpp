// Layer normalisation, y = gamma (x - mean) / sqrt(variance + 1e-5) + beta over each row, with the
// additions of a residual stream on either side of it: one pass over memory forward, one backward.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// x, delta, normal, y: [rows x width]; bias, gamma, beta: [width]; reciprocal: [rows], in W, which
/// is T but where T is narrow.
template <class T, class W = T>
struct LayerNormForward {
  size_t rows, width;
  const T* delta;  // x += delta + bias comes first; either may be null, bias is if delta is
  const T* bias;
  const T* gamma;
  const T* beta;
  T* x;
  T* normal;      // out, for backward: (x - mean) / sqrt(variance + 1e-5)
  W* reciprocal;  // out, for backward: 1 / sqrt(variance + 1e-5)
  T* y;
};

template <class T, class W = T>
struct LayerNormBackward {
  size_t rows, width;
  const T* normal;
  const W* reciprocal;
  const T* gamma;
  const T* dy;
  T* dgamma;  // added to
  T* dbeta;   // added to
  T* dx;      // added to: the other branch's gradient is there
};

template <class T>
struct LayerNorm {
  void (*forward)(const LayerNormForward<T>& pass);
  void (*backward)(const LayerNormBackward<T>& pass);
};

template <class T>
const LayerNorm<T>& layer_norm_kernels();

}  // namespace rondo::trainer
