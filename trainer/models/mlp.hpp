// The byte-level multi-layer perceptron: predicts the next byte from the last 16. Each of the 16 is
// embedded in width/16 numbers, their concatenation goes through `layers` ReLU layers width x width
// and a linear layer to 256 logits.
#pragma once

#include <memory>

#include "trainer/models/model.hpp"

namespace rondo::trainer {

struct MlpShape {
  static constexpr size_t kContext = 16;
  static constexpr size_t kClasses = 256;

  size_t layers;  // hidden layers, at least 1
  size_t width;   // a multiple of kContext
  size_t batch;   // most samples of one pass
};

/// Allocates its activations here and nothing later. Throws std::bad_alloc.
template <class T>
std::unique_ptr<Model<T>> make_mlp(const MlpShape& shape);

}  // namespace rondo::trainer
