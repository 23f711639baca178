// The layers of a model in the host's memory: what cuda/layers_on_device.hpp is on a device, with the
// same functions. Every call returns when it is done.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/base/batch.hpp"
#include "trainer/layers/host/attention.hpp"
#include "trainer/layers/host/batch_norm.hpp"
#include "trainer/layers/host/convolution.hpp"
#include "trainer/layers/host/dropout.hpp"
#include "trainer/layers/host/gelu.hpp"
#include "trainer/layers/host/layer_norm.hpp"
#include "trainer/layers/host/layers.hpp"
#include "trainer/layers/host/pooling.hpp"
#include "trainer/layers/host/rows.hpp"
#include "trainer/layers/operands.hpp"

namespace rondo::trainer {

/// What a model's layers run on. T is float or double.
template <class T>
class LayersOnHost {
 public:
  using Element = T;
  using Wide = T;  // what norms and attention keep for backward
  template <class Number>
  using Memory = std::vector<Number>;
  using Statistics = BatchStatistics;

  // Memory, all of it before the first pass.

  template <class Number>
  void allocate(Memory<Number>& memory, size_t count) {
    memory.resize(count);
    bytes_ += count * sizeof(Number);
  }
  Statistics statistics(size_t channels) {
    Statistics made(channels);
    bytes_ += made.bytes();
    return made;
  }
  /// From a row of logits to the next.
  size_t row_stride(size_t width) const { return width; }
  /// Has room for inputs.
  void expect(const InputSizes& sizes) {
    sizes_ = sizes;
    allocate(images_, sizes.samples * sizes.pixels);
    allocate(keys_, sizes.draws ? sizes.samples : 0);
  }
  /// Has room for what sums of columns of [rows x width] need on a device.
  void expect_sums(size_t /*rows*/, size_t /*width*/) {}
  /// What it has allocated.
  size_t bytes() const { return bytes_; }
  /// The first failure of a call, for good.
  Status status() const { return {}; }

  // Inputs.

  /// `key`: of the pass.
  Inputs<T> take(const Batch& batch, bool training, uint64_t key) {
    std::copy_n(batch.images, batch.size * sizes_.pixels, images_.data());
    const bool draws = training && sizes_.draws;
    for (size_t s = 0; draws && s < batch.size; ++s) keys_[s] = sample_key(key, batch.ids[s]);
    return {.tokens = batch.tokens,
            .images = images_.data(),
            .targets = batch.targets,
            .keys = draws ? keys_.data() : nullptr};
  }

  // Rows.

  void clear(size_t count, T* values) { std::fill_n(values, count, T{0}); }
  void copy(size_t count, const T* from, T* to) { std::copy_n(from, count, to); }
  void add_bias(size_t rows, size_t width, const T* bias, T* y) {
    rows_kernels<T>().add_bias(rows, width, bias, false, y);
  }
  void relu_backward(size_t count, const T* y, T* dy) { trainer::relu_backward(count, y, dy); }
  void drop(const Dropout& dropout, size_t samples, size_t size, T* values) {
    trainer::drop(dropout, samples, size, values);
  }

  // Linear layers.

  void multiply_forward(const LinearShape& shape, const T* x, const T* w, T* y) {
    trainer::multiply_forward(shape, x, w, y);
  }
  void multiply_input_gradient(const LinearShape& shape, const T* dy, const T* w, T* dx) {
    trainer::multiply_input_gradient(shape, dy, w, dx);
  }
  void multiply_weight_gradient(const LinearShape& shape, const WeightPanel& panel, const T* dy,
                                const T* x, T* dw, bool accumulate) {
    trainer::multiply_weight_gradient(shape, panel, dy, x, dw, accumulate);
  }
  void linear_forward(const LinearShape& shape, const T* x, const T* w, const T* bias, bool relu,
                      T* y) {
    trainer::linear_forward(shape, x, w, bias, relu, y);
  }
  void linear_backward_bias(const LinearShape& shape, const T* dy, bool accumulate, T* dbias) {
    trainer::linear_backward_bias(shape, dy, accumulate, dbias);
  }

  // Embeddings.

  void embedding_forward(const EmbeddingForward<T>& pass) {
    trainer::embedding_forward(pass.symbols, pass.size, pass.x, pass.table, pass.y);
    const size_t samples = pass.symbols / pass.context, sample = pass.context * pass.size;
    // Every sample is a row, and all position embeddings together are a bias of it.
    if (pass.positions != nullptr) add_bias(samples, sample, pass.positions, pass.y);
    drop(pass.dropout, samples, sample, pass.y);
  }
  /// dtable[x[i]] += dy[i]: `symbols` of the batch's tokens.
  void embedding_backward(size_t symbols, size_t size, const Inputs<T>& inputs, const T* dy,
                          T* dtable) {
    trainer::embedding_backward(symbols, size, inputs.tokens, dy, dtable);
  }

  // Norms, GELU, attention.

  void layer_norm_forward(const LayerNormForward<T, Wide>& pass) {
    layer_norm_kernels<T>().forward(pass);
  }
  /// dgamma and dbeta are written, or added to when `accumulate`.
  void layer_norm_backward(const LayerNormBackward<T, Wide>& pass, bool accumulate) {
    for (T* gradient : {pass.dgamma, pass.dbeta}) {
      if (!accumulate) clear(pass.width, gradient);
    }
    layer_norm_kernels<T>().backward(pass);
  }
  void gelu_forward(size_t rows, size_t width, const T* bias, T* x, T* y) {
    gelu_kernels<T>().forward(rows, width, bias, x, y);
  }
  void gelu_backward(const LinearShape& shape, const T* derivative, T* dy, bool accumulate,
                     T* dbias) {
    if (!accumulate) clear(shape.out, dbias);
    gelu_kernels<T>().backward(shape.rows, shape.out, derivative, dy, dbias);
  }
  /// How many numbers a layer's attention keeps for backward, and needs as scratch.
  size_t attention_kept(const AttentionShape& shape) const {
    return shape.samples * shape.heads * probabilities_per_head(shape.context);
  }
  size_t attention_scratch(const AttentionShape& shape) const {
    return trainer::attention_scratch(shape);
  }
  void attention_forward(const Attention<T, Wide>& pass) {
    trainer::attention_forward<T>({.shape = pass.shape,
                                   .dropout = pass.dropout,
                                   .qkv = pass.qkv,
                                   .probabilities = pass.kept,
                                   .scratch = pass.scratch,
                                   .y = pass.y});
  }
  void attention_backward(const Attention<T, Wide>& pass, const T* dy, T* dqkv) {
    trainer::attention_backward<T>({.shape = pass.shape,
                                    .dropout = pass.dropout,
                                    .qkv = pass.qkv,
                                    .probabilities = pass.kept,
                                    .dy = dy,
                                    .scratch = pass.scratch,
                                    .dqkv = dqkv});
  }

  // The loss.

  /// Adds the rows' losses to *loss; logits become what backward takes, which is the probabilities
  /// where the pass does not train.
  void softmax_cross_entropy_forward(const LogitsShape& shape, const int32_t* targets,
                                     bool /*training*/, T* logits, double* loss,
                                     const LossFactors& /*factors*/ = {}) {
    *loss += trainer::softmax_cross_entropy_forward(shape, targets, logits);
  }
  /// What forward left of a training pass becomes scale times the logits' gradient.
  void softmax_cross_entropy_backward(const LogitsShape& shape, const int32_t* targets,
                                      double scale, T* logits) {
    trainer::softmax_cross_entropy_backward(shape, targets, static_cast<T>(scale), logits);
  }
  /// Adds to *correct how many rows' targets are the first of the largest, which is finite.
  void count_correct(const LogitsShape& shape, const int32_t* targets, const T* probabilities,
                     double* correct) {
    size_t count = 0;
    const T* row = probabilities;
    for (size_t r = 0; r < shape.rows; ++r, row += shape.stride) {
      const T* likeliest = std::max_element(row, row + shape.classes);
      // Among NaN the first would be the largest.
      if (likeliest == row + targets[r] && std::isfinite(*likeliest)) ++count;
    }
    *correct += static_cast<double>(count);
  }

  // Images.

  /// How many numbers a convolution needs as scratch.
  size_t convolution_scratch(const ConvolutionShape& shape) const { return shape.columns(); }
  /// bias[out_channels] is added where it is not null, and ReLU follows if `relu`: not without bias.
  void convolution_forward(const ConvolutionShape& shape, const T* x, const T* w, const T* bias,
                           bool relu, T* scratch, T* y) {
    trainer::convolution_forward(shape, x, w, scratch, y);
    if (bias != nullptr) trainer::convolution_bias_forward(shape, bias, relu, y);
  }
  void convolution_backward_weight(const ConvolutionShape& shape, const T* dy, const T* x,
                                   T* scratch, bool accumulate, T* dw) {
    trainer::convolution_backward_weight(shape, dy, x, scratch, accumulate, dw);
  }
  void convolution_backward_input(const ConvolutionShape& shape, const T* dy, const T* w,
                                  T* scratch, T* dx) {
    trainer::convolution_backward_input(shape, dy, w, scratch, dx);
  }
  void convolution_bias_backward(const ConvolutionShape& shape, const T* dy, bool accumulate,
                                 T* dbias) {
    trainer::convolution_bias_backward(shape, dy, accumulate, dbias);
  }

  Status batch_norm_measure(const BatchNormShape& shape, const T* x, const SumOverRanks& sum,
                            Statistics& statistics) {
    return trainer::batch_norm_measure(shape, x, sum, statistics);
  }
  void batch_norm_remember(const Statistics& measured, double momentum,
                           const RunningStatistics<T>& running) {
    trainer::batch_norm_remember(measured, momentum, running);
  }
  void batch_norm_recall(const BatchNormShape& shape, const RunningStatistics<T>& running,
                         Statistics& statistics) {
    trainer::batch_norm_recall(shape, running, statistics);
  }
  void batch_norm_forward(const BatchNormShape& shape, const Statistics& statistics,
                          const BatchNormParameters<T>& parameters, const T* x, bool relu, T* y) {
    trainer::batch_norm_forward(shape, statistics, parameters, x, relu, y);
  }
  void batch_norm_backward_parameters(const BatchNormShape& shape, Statistics& statistics,
                                      const T* dy, const T* x, bool accumulate,
                                      const BatchNormParameters<T>& gradients) {
    trainer::batch_norm_backward_parameters(shape, statistics, dy, x, accumulate, gradients);
  }
  Status batch_norm_backward_exchange(const SumOverRanks& sum, Statistics& statistics) {
    return trainer::batch_norm_backward_exchange(sum, statistics);
  }
  void batch_norm_backward_input(const BatchNormShape& shape, const Statistics& statistics,
                                 const T* weight, const T* x, T* dy) {
    trainer::batch_norm_backward_input(shape, statistics, weight, x, dy);
  }

  void max_pool_forward(const PoolShape& shape, const T* x, T* y, uint8_t* which) {
    trainer::max_pool_forward(shape, x, y, which);
  }
  void max_pool_backward(const PoolShape& shape, const T* dy, const uint8_t* which, T* dx) {
    trainer::max_pool_backward(shape, dy, which, dx);
  }
  void average_pool_forward(size_t planes, size_t pixels, const T* x, T* y) {
    trainer::average_pool_forward(planes, pixels, x, y);
  }
  void average_pool_backward(size_t planes, size_t pixels, const T* dy, T* dx) {
    trainer::average_pool_backward(planes, pixels, dy, dx);
  }

 private:
  InputSizes sizes_{.samples = 0};
  std::vector<T> images_;       // of the batch, [samples x pixels]
  std::vector<uint64_t> keys_;  // by sample
  size_t bytes_ = 0;
};

}  // namespace rondo::trainer
