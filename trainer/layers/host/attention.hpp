// Causal multi-head attention, softmax(q k^T / sqrt(size)) v for each head, between the linear
// layers that belong to it. Queries are taken in blocks: of the scores only what such a block sees
// is computed and kept, half of them in a long context. Refuses padding masks and caches.
#pragma once

#include <cstddef>

#include "trainer/layers/host/dropout.hpp"

namespace rondo::trainer {

struct AttentionShape {
  size_t samples, context, heads, width;  // width: of all heads together

  size_t head_size() const { return width / heads; }
};

/// Of one sample and one head: how many probabilities are kept for backward.
size_t probabilities_per_head(size_t context);
/// How many numbers attention needs beside its operands, at most.
size_t attention_scratch(const AttentionShape& shape);

/// qkv: [samples x context x (queries, keys, values of all heads)], 3 width numbers for each
/// position; y: [samples x context x width]; probabilities: [samples x heads x per head], those
/// before dropout.
template <class T>
struct AttentionForward {
  AttentionShape shape;
  Dropout dropout;  // of the probabilities
  const T* qkv;
  T* probabilities;
  T* scratch;
  T* y;
};

template <class T>
struct AttentionBackward {
  AttentionShape shape;
  Dropout dropout;
  const T* qkv;
  const T* probabilities;
  const T* dy;
  T* scratch;
  T* dqkv;  // written
};

template <class T>
void attention_forward(const AttentionForward<T>& pass);
template <class T>
void attention_backward(const AttentionBackward<T>& pass);

/// Operations of the matrix products of both, for one sample: those of the pairs of a query and a
/// key that it sees.
double attention_operations(const AttentionShape& shape);

}  // namespace rondo::trainer
