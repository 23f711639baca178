// GPT-2 (Radford et al. 2019): token and position embeddings, pre-norm blocks of causal attention
// and a two-layer perceptron with GELU, a final layer norm, and an output head whose weight is the
// token embedding. Trains; refuses to generate text: nothing here keeps keys and values.
#pragma once

#include <memory>
#include <string>

#include "trainer/models/model.hpp"

namespace rondo::trainer {

/// The defaults are "nano". GPT-2 124M is {12, 768, 12, 1024, 50257}.
struct GptShape {
  size_t layers = 4;
  size_t width = 128;  // a multiple of heads
  size_t heads = 4;
  size_t context = 64;  // tokens of every sample, at most 1024 in published weights
  size_t vocabulary = 256;
  size_t batch = 16;      // most samples of one pass
  double dropout = 0;     // of embeddings, attention probabilities and residuals; in [0, 1)
  double layer_drop = 0;  // the probability with which a training pass leaves out a block (Fan et
                          // al. 2020): decided by the first sample of the rank's batch
  /// The token embedding's gradient has two shares: the head's is final when backward begins, the
  /// look-up's when it ends. true: they are two entries of parameters(), "wte.weight" first and
  /// "wte.weight rows", which adds to it, last; so the first can travel during all of backward.
  /// false: one entry, last, with their sum.
  bool split_tied = true;
};

/// Of attention's heads on a device: the most numbers.
inline constexpr size_t kLargestHeadOnDevice = 128;

/// Parameters have the names of Hugging Face's GPT-2. Weights of linear layers are [out x in], as
/// in torch.nn.Linear. Allocates its activations here and nothing later. Throws std::bad_alloc.
template <class T>
std::unique_ptr<Model<T>> make_gpt(const GptShape& shape);

}  // namespace rondo::trainer
