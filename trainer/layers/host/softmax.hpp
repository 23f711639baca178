// Softmax of rows, whole ones (cross-entropy) and those of causal attention, of which a row sees
// one element more than the row before.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// The logarithm of a row's sum of exp() is largest + log(sum).
struct SoftmaxSum {
  double largest;
  double sum;  // of exp(element - largest)
};

/// A block of the scores of causal attention: row r sees its first `first` + r + 1 elements.
struct CausalBlock {
  size_t rows, first, width;  // first + rows <= width
};

template <class T>
struct Softmax {
  /// In place; count > 0. A NaN, or an infinity above zero, makes the whole row NaN.
  SoftmaxSum (*forward)(size_t count, T* row);
  /// In place on scores[rows x width]; what a row does not see becomes 0, whatever it was.
  void (*causal_forward)(const CausalBlock& block, T* scores);
  /// In place on the gradient of `probabilities`: factor times the gradient of the scores, with
  /// exactly 0 for what a row does not see.
  void (*causal_backward)(const CausalBlock& block, T factor, const T* probabilities, T* gradient);
};

template <class T>
const Softmax<T>& softmax_kernels();

}  // namespace rondo::trainer
