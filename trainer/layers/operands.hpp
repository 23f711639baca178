// What models hand to the layers' two back ends, host/layers_on_host.hpp and cuda/layers_on_device.hpp,
// besides plain numbers and the shapes of host/. Pointers are to memory of the back end.
#pragma once

#include "trainer/layers/host/attention.hpp"
#include "trainer/layers/host/dropout.hpp"

namespace rondo::trainer {

/// How much a model's layers read of each batch, at most.
struct InputSizes {
  size_t samples;       // of a batch
  size_t tokens = 0;    // of a sample
  size_t symbols = 0;   // different tokens
  size_t embedded = 0;  // numbers of a token's row in a table
  size_t pixels = 0;    // numbers of a sample's image
  size_t targets = 1;   // of a sample
  bool draws = false;   // training passes draw random numbers
};

/// A batch as layers read it: what of it InputSizes has, else null. Until the next one is taken.
template <class T>
struct Inputs {
  const int32_t* tokens = nullptr;
  const T* images = nullptr;
  const int32_t* targets = nullptr;
  const uint64_t* keys = nullptr;  // of the samples' random numbers; only in training
  // The tokens' numbers, sorted by token, and of one token ascending; on a device, only in training.
  const int32_t* order = nullptr;
};

/// Logits, or what replaces them: [rows x classes], with `stride` numbers from a row to the next, at
/// least `classes`. On a device stride is row_stride(classes), and the padding between rows is never
/// read, and zero where a function of the loss has written.
struct LogitsShape {
  size_t rows, classes, stride;
};

/// By what a device multiplies the gradient of the loss: both are in its memory; null: 1.
struct LossFactors {
  const float* of_step = nullptr;
  const float* scale = nullptr;
};

/// y[symbols x size] = table[x[i]] + positions[i % context], after dropout. A sample is `context`
/// symbols.
template <class T>
struct EmbeddingForward {
  size_t symbols, size, context;
  const int32_t* x;
  const T* table;      // [any x size]
  const T* positions;  // [context x size]; null: none are added
  Dropout dropout;
  T* y;
};

/// One layer's attention, forward and backward. See host/attention.hpp.
template <class T, class W>
struct Attention {
  AttentionShape shape;
  Dropout dropout;  // of the probabilities
  const T* qkv;
  W* kept;     // out of forward, for backward
  T* scratch;  // of both
  T* y;        // out of forward, and read by backward
};

}  // namespace rondo::trainer
