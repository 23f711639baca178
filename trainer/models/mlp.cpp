// See mlp.hpp. Parameters and layers are numbered in backward's order: output layer, hidden layers
// from the last to the first, embedding. Activations are numbered in forward's: 0 is the embedded
// input, i the output of hidden layer i.
#include "trainer/models/mlp.hpp"

#include <algorithm>
#include <cmath>

#include "trainer/layers/host/layers.hpp"

namespace rondo::trainer {
namespace {

template <class T>
class Mlp : public Model<T> {
 public:
  explicit Mlp(const MlpShape& shape) : shape_(shape) {
    describe_linear("output", MlpShape::kClasses, 0.01);  // starts near the uniform guess
    for (size_t l = shape.layers; l >= 1; --l) {
      describe_linear("hidden" + std::to_string(l), shape.width, 2.0);
    }
    layers_.push_back("embedding");
    parameters_.push_back({.name = "embedding",
                           .shape = {MlpShape::kClasses, embedded()},
                           .init = {Init::kUniform, std::sqrt(3.0)}});  // variance 1
    for (size_t l = 0; l <= shape.layers; ++l) activations_.emplace_back(shape.batch * shape.width);
    logits_.resize(shape.batch * MlpShape::kClasses);
    for (auto& gradient : activation_gradients_) gradient.resize(shape.batch * shape.width);
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<Parameter>& buffers() const override { return buffers_; }
  const std::vector<std::string>& layers() const override { return layers_; }
  size_t loss_terms() const override { return 1; }
  size_t classes() const override { return MlpShape::kClasses; }
  const T* probabilities() const override { return logits_.data(); }

  double gemm_operations() const override {
    const auto width = static_cast<double>(shape_.width);
    const double weights =
        width * (width * static_cast<double>(shape_.layers) + MlpShape::kClasses);
    return 6 * weights;  // forward, and backward for the weights and for the input
  }

  size_t activation_bytes() const override {
    return sizeof(T) * shape_.batch * (shape_.width * (shape_.layers + 3) + MlpShape::kClasses);
  }

  void bind(const std::vector<T*>& parameters, const std::vector<T*>& gradients,
            const std::vector<T*>& /*buffers*/) override {
    values_ = parameters;
    gradients_ = gradients;
  }

  Result<double> forward(const Batch& batch, const Pass& pass) override {
    const size_t rows = batch.size;
    pass.forward_begins(layers_.size() - 1);
    embedding_forward(rows * MlpShape::kContext, embedded(), batch.tokens, values_.back(),
                      activations_[0].data());
    for (size_t l = 1; l <= shape_.layers; ++l) {
      pass.forward_begins(shape_.layers - l + 1);
      linear_forward(hidden_shape(rows), activations_[l - 1].data(), values_[weight_of(l)],
                     values_[bias_of(l)], true, activations_[l].data());
    }
    pass.forward_begins(0);
    linear_forward(output_shape(rows), activations_.back().data(), values_[kOutputWeight],
                   values_[kOutputBias], false, logits_.data());
    return softmax_cross_entropy_forward(rows, MlpShape::kClasses, batch.targets, logits_.data());
  }

  Status backward(const Batch& batch, const Pass& /*pass*/, T scale, bool accumulate,
                  BackwardListener& listener) override {
    const size_t rows = batch.size;
    T* incoming = activation_gradients_[0].data();
    T* outgoing = activation_gradients_[1].data();

    listener.layer_begins(0);
    softmax_cross_entropy_backward(rows, MlpShape::kClasses, batch.targets, scale, logits_.data());
    finish_linear(output_shape(rows), kOutputBias, logits_.data(), activations_.back().data(),
                  accumulate, listener);
    linear_backward_input(output_shape(rows), logits_.data(), values_[kOutputWeight], incoming);

    for (size_t l = shape_.layers; l >= 1; --l) {
      listener.layer_begins(static_cast<int>(shape_.layers - l + 1));
      relu_backward(rows * shape_.width, activations_[l].data(), incoming);
      finish_linear(hidden_shape(rows), bias_of(l), incoming, activations_[l - 1].data(),
                    accumulate, listener);
      linear_backward_input(hidden_shape(rows), incoming, values_[weight_of(l)], outgoing);
      std::swap(incoming, outgoing);
    }

    listener.layer_begins(static_cast<int>(layers_.size()) - 1);
    if (!accumulate) std::fill_n(gradients_.back(), parameters_.back().count(), T{0});
    embedding_backward(rows * MlpShape::kContext, embedded(), batch.tokens, incoming,
                       gradients_.back());
    tell(parameters_.size() - 1, listener);
    return {};
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
    return {.rows = rows, .in = shape_.width, .out = MlpShape::kClasses};
  }

  /// `gain` 2 keeps the variance through a ReLU (He et al. 2015), 1 without.
  void describe_linear(const std::string& layer, size_t out, double gain) {
    layers_.push_back(layer);
    parameters_.push_back(
        {.name = layer + ".bias", .shape = {out}, .init = {Init::kConstant, 0}, .decays = false});
    parameters_.push_back(
        {.name = layer + ".weight",
         .shape = {out, shape_.width},
         .init = {Init::kUniform, std::sqrt(3 * gain / static_cast<double>(shape_.width))}});
  }

  /// A linear layer's own gradients come before its input's, so that they can travel meanwhile.
  void finish_linear(const LinearShape& shape, size_t bias, const T* dy, const T* x,
                     bool accumulate, BackwardListener& listener) {
    linear_backward_parameters(shape, dy, x, accumulate, gradients_[bias + 1], gradients_[bias]);
    tell(bias, listener);
    tell(bias + 1, listener);
  }

  void tell(size_t parameter, BackwardListener& listener) const {
    listener.gradient_ready(static_cast<int>(parameter), parameters_[parameter].count());
  }

  const MlpShape shape_;
  std::vector<Parameter> parameters_, buffers_;  // no buffers
  std::vector<std::string> layers_;
  std::vector<T*> values_, gradients_;       // by parameter
  std::vector<std::vector<T>> activations_;  // [batch x width] each
  std::vector<T> logits_;                    // [batch x 256]: logits, probabilities, their gradient
  std::vector<T> activation_gradients_[2];   // [batch x width], used in turn
};

}  // namespace

template <class T>
std::unique_ptr<Model<T>> make_mlp(const MlpShape& shape) {
  return std::make_unique<Mlp<T>>(shape);
}

template std::unique_ptr<Model<float>> make_mlp(const MlpShape&);
template std::unique_ptr<Model<double>> make_mlp(const MlpShape&);

}  // namespace rondo::trainer
