// The perceptron (mlp.hpp) over one of the layers' back ends. Parameters and layers are numbered in
// backward's order: output layer, hidden layers from the last to the first, embedding. Activations
// are numbered in forward's: 0 is the embedded input, i the output of hidden layer i.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "trainer/layers/operands.hpp"
#include "trainer/models/mlp.hpp"

namespace rondo::trainer {

template <class Layers>
class Mlp : public Model<typename Layers::Element> {
  using T = typename Layers::Element;
  using Memory = typename Layers::template Memory<T>;

 public:
  Mlp(Layers layers, const MlpShape& shape) : shape_(shape), layers_(std::move(layers)) {
    describe_linear("output", MlpShape::kClasses, 0.01);  // starts near the uniform guess
    for (size_t l = shape.layers; l >= 1; --l) {
      describe_linear("hidden" + std::to_string(l), shape.width, 2.0);
    }
    layer_names_.push_back("embedding");
    parameters_.push_back({.name = "embedding",
                           .shape = {MlpShape::kClasses, embedded()},
                           .init = {Init::kUniform, std::sqrt(3.0)}});  // variance 1
    allocate();
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<Parameter>& buffers() const override { return buffers_; }
  const std::vector<std::string>& layers() const override { return layer_names_; }
  size_t loss_terms() const override { return 1; }
  size_t classes() const override { return MlpShape::kClasses; }
  const T* probabilities() const override { return logits_.data(); }

  double gemm_operations() const override {
    const auto width = static_cast<double>(shape_.width);
    const double weights =
        width * (width * static_cast<double>(shape_.layers) + MlpShape::kClasses);
    return 6 * weights;  // forward, and backward for the weights and for the input
  }

  size_t activation_bytes() const override { return layers_.bytes(); }

  void bind(const std::vector<T*>& parameters, const std::vector<T*>& gradients,
            const std::vector<BufferElement<T>*>& /*buffers*/) override {
    values_ = parameters;
    gradients_ = gradients;
  }

  void take(const Batch& batch, const Pass& pass) override {
    inputs_ = layers_.take(batch, pass.training, pass.key());
  }

  Status forward(const Batch& batch, const Pass& pass, double* loss) override {
    if (!pass.taken) take(batch, pass);
    const size_t rows = batch.size;
    pass.forward_begins(layer_names_.size() - 1);
    layers_.embedding_forward({.symbols = rows * MlpShape::kContext,
                               .size = embedded(),
                               .context = MlpShape::kContext,
                               .x = inputs_.tokens,
                               .table = values_.back(),
                               .positions = nullptr,
                               .dropout = {},
                               .y = activations_[0].data()});
    for (size_t l = 1; l <= shape_.layers; ++l) {
      pass.forward_begins(shape_.layers - l + 1);
      layers_.linear_forward(hidden_shape(rows), activations_[l - 1].data(), values_[weight_of(l)],
                             values_[bias_of(l)], true, activations_[l].data());
    }
    pass.forward_begins(0);
    layers_.linear_forward(output_shape(rows), activations_.back().data(), values_[kOutputWeight],
                           values_[kOutputBias], false, logits_.data());
    layers_.softmax_cross_entropy_forward(logits_shape(rows), inputs_.targets, pass.training,
                                          logits_.data(), loss, pass.loss_factors);
    return layers_.status();
  }

  Status count_correct(const Batch& batch, double* correct) override {
    layers_.count_correct(logits_shape(batch.size), inputs_.targets, logits_.data(), correct);
    return layers_.status();
  }

  Status backward(const Batch& batch, const Pass& /*pass*/, double scale, bool accumulate,
                  BackwardListener& listener) override {
    const size_t rows = batch.size;
    T* incoming = activation_gradients_[0].data();
    T* outgoing = activation_gradients_[1].data();

    listener.layer_begins(0);
    layers_.softmax_cross_entropy_backward(logits_shape(rows), inputs_.targets, scale,
                                           logits_.data());
    finish_linear(output_shape(rows), kOutputBias, logits_.data(), activations_.back().data(),
                  accumulate, listener);
    layers_.multiply_input_gradient(output_shape(rows), logits_.data(), values_[kOutputWeight],
                                    incoming);

    for (size_t l = shape_.layers; l >= 1; --l) {
      listener.layer_begins(static_cast<int>(shape_.layers - l + 1));
      layers_.relu_backward(rows * shape_.width, activations_[l].data(), incoming);
      finish_linear(hidden_shape(rows), bias_of(l), incoming, activations_[l - 1].data(),
                    accumulate, listener);
      layers_.multiply_input_gradient(hidden_shape(rows), incoming, values_[weight_of(l)],
                                      outgoing);
      std::swap(incoming, outgoing);
    }

    listener.layer_begins(static_cast<int>(layer_names_.size()) - 1);
    if (!accumulate) layers_.clear(parameters_.back().count(), gradients_.back());
    layers_.embedding_backward(rows * MlpShape::kContext, embedded(), inputs_, incoming,
                               gradients_.back());
    tell(parameters_.size() - 1, listener);
    return layers_.status();
  }

 private:
  static constexpr size_t kOutputBias = 0, kOutputWeight = 1;

  size_t embedded() const { return shape_.width / MlpShape::kContext; }
  size_t bias_of(size_t layer) const { return 2 * (shape_.layers - layer + 1); }
  size_t weight_of(size_t layer) const { return bias_of(layer) + 1; }
  LinearShape hidden_shape(size_t rows) const {
    return {.rows = rows, .in = shape_.width, .out = shape_.width};
  }
  LinearShape output_shape(size_t rows) const {
    return {.rows = rows,
            .in = shape_.width,
            .out = MlpShape::kClasses,
            .stride = layers_.row_stride(MlpShape::kClasses)};
  }
  LogitsShape logits_shape(size_t rows) const {
    return {.rows = rows,
            .classes = MlpShape::kClasses,
            .stride = layers_.row_stride(MlpShape::kClasses)};
  }

  /// `gain` 2 keeps the variance through a ReLU (He et al. 2015), 1 without.
  void describe_linear(const std::string& layer, size_t out, double gain) {
    layer_names_.push_back(layer);
    parameters_.push_back(
        {.name = layer + ".bias", .shape = {out}, .init = {Init::kConstant, 0}, .decays = false});
    parameters_.push_back(
        {.name = layer + ".weight",
         .shape = {out, shape_.width},
         .init = {Init::kUniform, std::sqrt(3 * gain / static_cast<double>(shape_.width))}});
  }

  void allocate() {
    layers_.expect({.samples = shape_.batch,
                    .tokens = MlpShape::kContext,
                    .symbols = MlpShape::kClasses,
                    .embedded = embedded()});
    layers_.expect_sums(shape_.batch, std::max(shape_.width, MlpShape::kClasses));
    activations_.resize(shape_.layers + 1);
    for (Memory& activation : activations_) {
      layers_.allocate(activation, shape_.batch * shape_.width);
    }
    layers_.allocate(logits_, shape_.batch * layers_.row_stride(MlpShape::kClasses));
    for (Memory& gradient : activation_gradients_) {
      layers_.allocate(gradient, shape_.batch * shape_.width);
    }
  }

  /// A linear layer's own gradients come before its input's, so that they can travel meanwhile.
  void finish_linear(const LinearShape& shape, size_t bias, const T* dy, const T* x,
                     bool accumulate, BackwardListener& listener) {
    layers_.linear_backward_bias(shape, dy, accumulate, gradients_[bias]);
    layers_.multiply_weight_gradient(shape, {.first = 0, .count = shape.out}, dy, x,
                                     gradients_[bias + 1], accumulate);
    tell(bias, listener);
    tell(bias + 1, listener);
  }

  void tell(size_t parameter, BackwardListener& listener) const {
    listener.gradient_ready(static_cast<int>(parameter), parameters_[parameter].count());
  }

  const MlpShape shape_;
  Layers layers_;
  std::vector<Parameter> parameters_, buffers_;  // no buffers
  std::vector<std::string> layer_names_;
  std::vector<T*> values_, gradients_;  // by parameter

  Inputs<T> inputs_;                 // of the last forward pass
  std::vector<Memory> activations_;  // [batch x width] each
  Memory logits_;                    // logits_shape(): logits, probabilities, their gradient
  Memory activation_gradients_[2];   // [batch x width], used in turn
};

}  // namespace rondo::trainer
