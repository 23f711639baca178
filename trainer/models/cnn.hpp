// A small convolutional network for images. Blocks of a 3 x 3 convolution, batch normalisation and
// ReLU, the first two followed by 2 x 2 max pooling; then a linear layer to the classes.
#pragma once

#include <memory>

#include "trainer/layers/host/batch_norm.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer {

struct CnnShape {
  size_t layers = 2;  // blocks, at least 1
  size_t width = 16;  // channels after the first block; twice as many after the others
  size_t channels = 1, height = 28, width_pixels = 28;  // of the images; at least 4 x 4
  size_t classes = 10;
  size_t batch;               // most samples of one pass
  bool synchronized = false;  // statistics of a batch are those of all ranks' samples
  bool batch_norm = true;     // else convolutions have a bias
  bool average = false;       // the linear layer sees each channel's average, not its pixels
  double momentum = 0.1;      // of the running statistics
  double epsilon = 1e-5;      // keeps batch normalisation from dividing by zero
};

/// Allocates its activations here and nothing later. `sum` is used if `shape.synchronized`: in
/// every training pass on every rank, also with no samples, for each block twice in forward and
/// once in backward; batch sizes may then differ between ranks. Evaluation does not use it.
/// Throws std::bad_alloc.
template <class T>
std::unique_ptr<Model<T>> make_cnn(const CnnShape& shape, SumOverRanks sum);

}  // namespace rondo::trainer
