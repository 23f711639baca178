// The convolutional network (cnn.hpp) over one of the layers' back ends. Blocks are numbered in
// forward's order, from 0 in the code and from 1 in names. Parameters and layers are in backward's:
// linear, then of each block, from the last to the first, normalisation and convolution.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "trainer/layers/host/convolution.hpp"
#include "trainer/layers/host/pooling.hpp"
#include "trainer/layers/operands.hpp"
#include "trainer/models/cnn.hpp"

namespace rondo::trainer {

/// A block and what it keeps for backward. Its parameters are, from `parameter` on: bias and weight
/// of the normalisation, weight of the convolution; or bias and weight of the convolution.
template <class Layers>
struct ConvBlock {
  using T = typename Layers::Element;
  ConvolutionShape convolution;  // of a whole batch
  bool pools;
  size_t parameter = 0, buffer = 0;
  typename Layers::Statistics statistics{};
  typename Layers::template Memory<T> convolved{}, activated{}, pooled{};  // not all in every block
  typename Layers::template Memory<uint8_t> which{};

  size_t out_size() const { return out_channels() * (pools ? pooled_pixels() : pixels()); }
  size_t out_channels() const { return convolution.out_channels; }
  size_t pixels() const { return convolution.out_pixels(); }
  size_t pooled_pixels() const { return pool_shape(1).out_count(); }

  ConvolutionShape convolution_shape(size_t samples) const {
    ConvolutionShape shape = convolution;
    shape.samples = samples;
    return shape;
  }
  PoolShape pool_shape(size_t planes) const {
    return {.planes = planes, .height = convolution.out_height(), .width = convolution.out_width()};
  }
  const T* output() const { return pools ? pooled.data() : activated.data(); }
};

template <class Layers>
class Cnn : public Model<typename Layers::Element> {
  using T = typename Layers::Element;
  using Block = ConvBlock<Layers>;
  template <class Number>
  using Memory = typename Layers::template Memory<Number>;

 public:
  Cnn(Layers layers, const CnnShape& shape, SumOverRanks sum)
      : shape_(shape), layers_(std::move(layers)), sum_(std::move(sum)) {
    RONDO_CHECK(shape.layers >= 1 && shape.height >= 4 && shape.width_pixels >= 4);
    if (!shape.synchronized) sum_ = nullptr;
    for (size_t b = 0; b < shape.layers; ++b) append_block();
    describe_linear();
    for (size_t b = shape.layers; b-- > 0;) describe_block(b);
    for (size_t b = 0; b < shape.layers; ++b) describe_buffers(b);
    allocate();
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<Parameter>& buffers() const override { return buffers_; }
  const std::vector<std::string>& layers() const override { return layer_names_; }
  size_t loss_terms() const override { return 1; }
  size_t classes() const override { return shape_.classes; }
  const T* probabilities() const override { return logits_.data(); }
  size_t activation_bytes() const override { return layers_.bytes(); }

  double gemm_operations() const override {
    double products = 3.0 * static_cast<double>(features() * shape_.classes);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      // Nobody asks for the gradient of the images.
      const double passes = b == 0 ? 2 : 3;
      const ConvolutionShape& c = blocks_[b].convolution;
      products += passes * static_cast<double>(c.out_channels * c.columns());
    }
    return 2 * products;
  }

  void bind(const std::vector<T*>& parameters, const std::vector<T*>& gradients,
            const std::vector<BufferElement<T>*>& buffers) override {
    values_ = parameters;
    gradients_ = gradients;
    buffer_values_ = buffers;
  }

  void take(const Batch& batch, const Pass& pass) override {
    inputs_ = layers_.take(batch, pass.training, pass.key());
  }

  Status forward(const Batch& batch, const Pass& pass, double* loss) override {
    if (!pass.taken) take(batch, pass);
    size_t layer = layer_names_.size();  // forward visits them the other way round
    for (size_t b = 0; b < blocks_.size(); ++b) {
      pass.forward_begins(--layer);
      convolve(blocks_[b], input_of(b), batch.size);
      if (shape_.batch_norm) pass.forward_begins(--layer);
      RONDO_TRY(activate(blocks_[b], batch.size, pass.training));
    }
    pass.forward_begins(--layer);
    if (shape_.average) {
      layers_.average_pool_forward(batch.size * last().out_channels(), last_pixels(),
                                   last().output(), averages_.data());
    }
    layers_.linear_forward(linear_shape(batch.size), linear_input(), values_[kLinearWeight],
                           values_[kLinearBias], false, logits_.data());
    layers_.softmax_cross_entropy_forward(logits_shape(batch.size), inputs_.targets, pass.training,
                                          logits_.data(), loss, pass.loss_factors);
    return layers_.status();
  }

  Status count_correct(const Batch& batch, double* correct) override {
    layers_.count_correct(logits_shape(batch.size), inputs_.targets, logits_.data(), correct);
    return layers_.status();
  }

  Status backward(const Batch& batch, const Pass& /*pass*/, double scale, bool accumulate,
                  BackwardListener& listener) override {
    int layer = 0;
    listener.layer_begins(layer++);
    backward_linear(batch, scale, accumulate, listener);
    for (size_t b = blocks_.size(); b-- > 0;) {
      Block& block = blocks_[b];
      listener.layer_begins(layer++);
      backward_activation(block, batch.size);
      if (shape_.batch_norm) {
        RONDO_TRY(backward_norm(block, batch.size, accumulate, listener));
        listener.layer_begins(layer++);
      }
      backward_convolution(b, batch.size, accumulate, listener);
    }
    return layers_.status();
  }

 private:
  static constexpr size_t kLinearBias = 0, kLinearWeight = 1;

  // ---- forward and backward, layer by layer. The gradient on its way back is in incoming_; a
  // layer that does not work in place leaves it in outgoing_ and swaps them.

  void convolve(Block& block, const T* input, size_t samples) {
    const ConvolutionShape shape = block.convolution_shape(samples);
    const bool norm = shape_.batch_norm;  // and its bias and ReLU
    layers_.convolution_forward(shape, input, values_[weight_of(block)],
                                norm ? nullptr : values_[block.parameter], !norm, scratch_.data(),
                                norm ? block.convolved.data() : block.activated.data());
  }

  /// Batch norm with its ReLU, and pooling.
  Status activate(Block& block, size_t samples, bool training) {
    if (shape_.batch_norm) {
      RONDO_TRY(measure_or_recall(block, samples, training));
      layers_.batch_norm_forward(norm_shape(block, samples), block.statistics,
                                 norm_parameters(block, values_), block.convolved.data(), true,
                                 block.activated.data());
    }
    if (block.pools) {
      layers_.max_pool_forward(block.pool_shape(samples * block.out_channels()),
                               block.activated.data(), block.pooled.data(), block.which.data());
    }
    return {};
  }

  Status measure_or_recall(Block& block, size_t samples, bool training) {
    const RunningStatistics<BufferElement<T>> running{.mean = buffer_values_[block.buffer],
                                                      .variance = buffer_values_[block.buffer + 1],
                                                      .batches = buffer_values_[block.buffer + 2]};
    const BatchNormShape shape = norm_shape(block, samples);
    if (training) {
      RONDO_TRY(layers_.batch_norm_measure(shape, block.convolved.data(), sum_, block.statistics));
      layers_.batch_norm_remember(block.statistics, shape_.momentum, running);
    } else {
      layers_.batch_norm_recall(shape, running, block.statistics);
    }
    return {};
  }

  void backward_linear(const Batch& batch, double scale, bool accumulate,
                       BackwardListener& listener) {
    const LinearShape shape = linear_shape(batch.size);
    layers_.softmax_cross_entropy_backward(logits_shape(batch.size), inputs_.targets, scale,
                                           logits_.data());
    layers_.linear_backward_bias(shape, logits_.data(), accumulate, gradients_[kLinearBias]);
    layers_.multiply_weight_gradient(shape, {.first = 0, .count = shape.out}, logits_.data(),
                                     linear_input(), gradients_[kLinearWeight], accumulate);
    tell(kLinearBias, listener);
    tell(kLinearWeight, listener);
    layers_.multiply_input_gradient(shape, logits_.data(), values_[kLinearWeight],
                                    incoming_.data());
    if (shape_.average) {
      layers_.average_pool_backward(batch.size * last().out_channels(), last_pixels(),
                                    incoming_.data(), outgoing_.data());
      std::swap(incoming_, outgoing_);
    }
  }

  /// Max pooling and ReLU.
  void backward_activation(const Block& block, size_t samples) {
    const size_t planes = samples * block.out_channels();
    if (block.pools) {
      layers_.max_pool_backward(block.pool_shape(planes), incoming_.data(), block.which.data(),
                                outgoing_.data());
      std::swap(incoming_, outgoing_);
    }
    layers_.relu_backward(planes * block.pixels(), block.activated.data(), incoming_.data());
  }

  Status backward_norm(Block& block, size_t samples, bool accumulate, BackwardListener& listener) {
    const BatchNormShape shape = norm_shape(block, samples);
    layers_.batch_norm_backward_parameters(shape, block.statistics, incoming_.data(),
                                           block.convolved.data(), accumulate,
                                           norm_parameters(block, gradients_));
    RONDO_TRY(layers_.batch_norm_backward_exchange(sum_, block.statistics));
    tell(block.parameter, listener);
    tell(block.parameter + 1, listener);
    layers_.batch_norm_backward_input(shape, block.statistics, values_[block.parameter + 1],
                                      block.convolved.data(), incoming_.data());
    return {};
  }

  void backward_convolution(size_t b, size_t samples, bool accumulate, BackwardListener& listener) {
    const Block& block = blocks_[b];
    const ConvolutionShape shape = block.convolution_shape(samples);
    if (!shape_.batch_norm) {
      layers_.convolution_bias_backward(shape, incoming_.data(), accumulate,
                                        gradients_[block.parameter]);
      tell(block.parameter, listener);
    }
    layers_.convolution_backward_weight(shape, incoming_.data(), input_of(b), scratch_.data(),
                                        accumulate, gradients_[weight_of(block)]);
    tell(weight_of(block), listener);
    if (b == 0) return;
    layers_.convolution_backward_input(shape, incoming_.data(), values_[weight_of(block)],
                                       scratch_.data(), outgoing_.data());
    std::swap(incoming_, outgoing_);
  }

  void tell(size_t parameter, BackwardListener& listener) const {
    listener.gradient_ready(static_cast<int>(parameter), parameters_[parameter].count());
  }

  // ---- shapes and places

  const Block& last() const { return blocks_.back(); }
  size_t last_pixels() const { return last().out_size() / last().out_channels(); }
  size_t features() const { return shape_.average ? last().out_channels() : last().out_size(); }
  const T* linear_input() const { return shape_.average ? averages_.data() : last().output(); }
  const T* input_of(size_t b) const { return b == 0 ? inputs_.images : blocks_[b - 1].output(); }
  size_t weight_of(const Block& block) const {
    return block.parameter + (shape_.batch_norm ? 2 : 1);
  }
  LinearShape linear_shape(size_t rows) const {
    return {.rows = rows,
            .in = features(),
            .out = shape_.classes,
            .stride = layers_.row_stride(shape_.classes)};
  }
  LogitsShape logits_shape(size_t rows) const {
    return {.rows = rows, .classes = shape_.classes, .stride = layers_.row_stride(shape_.classes)};
  }
  BatchNormShape norm_shape(const Block& block, size_t samples) const {
    return {.samples = samples,
            .channels = block.out_channels(),
            .pixels = block.pixels(),
            .epsilon = shape_.epsilon};
  }
  BatchNormParameters<T> norm_parameters(const Block& block, const std::vector<T*>& of) const {
    return {.weight = of[block.parameter + 1], .bias = of[block.parameter]};
  }

  // ---- construction

  void append_block() {
    const size_t b = blocks_.size();
    ConvolutionShape convolution{.samples = shape_.batch,
                                 .in_channels = shape_.channels,
                                 .height = shape_.height,
                                 .width = shape_.width_pixels,
                                 .out_channels = b == 0 ? shape_.width : 2 * shape_.width,
                                 .kernel = 3,
                                 .padding = 1};
    if (b > 0) {
      const Block& before = last();
      const PoolShape pool = before.pool_shape(1);
      convolution.in_channels = before.out_channels();
      convolution.height = before.pools ? pool.out_height() : pool.height;
      convolution.width = before.pools ? pool.out_width() : pool.width;
    }
    blocks_.push_back({.convolution = convolution, .pools = b < 2});
  }

  void describe_linear() {
    layer_names_.push_back("linear");
    const Init uniform{Init::kUniform, 1 / std::sqrt(static_cast<double>(features()))};
    parameters_.push_back(
        {.name = "linear.bias", .shape = {shape_.classes}, .init = uniform, .decays = false});
    parameters_.push_back(
        {.name = "linear.weight", .shape = {shape_.classes, features()}, .init = uniform});
  }

  void describe_block(size_t b) {
    Block& block = blocks_[b];
    const ConvolutionShape& c = block.convolution;
    const std::string number = std::to_string(b + 1);
    block.parameter = parameters_.size();
    if (shape_.batch_norm) {
      layer_names_.push_back("bn" + number);
      describe_channels("bn" + number + ".bias", c.out_channels, 0);
      describe_channels("bn" + number + ".weight", c.out_channels, 1);
    } else {
      describe_channels("conv" + number + ".bias", c.out_channels, 0);
    }
    layer_names_.push_back("conv" + number);
    parameters_.push_back(  // the variance stays through a ReLU (He et al. 2015)
        {.name = "conv" + number + ".weight",
         .shape = {c.out_channels, c.in_channels, c.kernel, c.kernel},
         .init = {Init::kNormal, std::sqrt(2 / static_cast<double>(c.patch()))}});
  }

  void describe_channels(const std::string& name, size_t channels, double value) {
    parameters_.push_back(
        {.name = name, .shape = {channels}, .init = {Init::kConstant, value}, .decays = false});
  }

  void describe_buffers(size_t b) {
    if (!shape_.batch_norm) return;
    const std::string layer = "bn" + std::to_string(b + 1);
    const size_t channels = blocks_[b].out_channels();
    blocks_[b].buffer = buffers_.size();
    buffers_.push_back({.name = layer + ".running_mean", .shape = {channels}, .init = {}});
    buffers_.push_back(
        {.name = layer + ".running_var", .shape = {channels}, .init = {Init::kConstant, 1}});
    buffers_.push_back({.name = layer + ".num_batches", .shape = {1}, .init = {}});
  }

  void allocate() {
    layers_.expect({.samples = shape_.batch, .pixels = blocks_[0].convolution.in_size()});
    layers_.expect_sums(shape_.batch, shape_.classes);
    size_t scratch = 0, gradient = features();
    for (Block& block : blocks_) {
      const ConvolutionShape& c = block.convolution;
      scratch = std::max(scratch, layers_.convolution_scratch(c));
      gradient = std::max({gradient, c.out_size(), &block == &blocks_[0] ? 0 : c.in_size()});
      if (shape_.batch_norm) {
        block.statistics = layers_.statistics(c.out_channels);
        layers_.allocate(block.convolved, shape_.batch * c.out_size());
      }
      layers_.allocate(block.activated, shape_.batch * c.out_size());
      if (!block.pools) continue;
      layers_.allocate(block.pooled, shape_.batch * block.out_size());
      layers_.allocate(block.which, shape_.batch * block.out_size());
    }
    layers_.allocate(scratch_, scratch);
    layers_.allocate(averages_, shape_.average ? shape_.batch * features() : 0);
    layers_.allocate(logits_, shape_.batch * layers_.row_stride(shape_.classes));
    layers_.allocate(incoming_, shape_.batch * gradient);
    layers_.allocate(outgoing_, shape_.batch * gradient);
  }

  const CnnShape shape_;
  Layers layers_;
  SumOverRanks sum_;  // empty unless synchronized
  std::vector<Block> blocks_;
  std::vector<Parameter> parameters_, buffers_;
  std::vector<std::string> layer_names_;
  std::vector<T*> values_, gradients_;
  std::vector<BufferElement<T>*> buffer_values_;

  Inputs<T> inputs_;               // of the last forward pass
  Memory<T> scratch_;              // convolutions'
  Memory<T> averages_;             // [batch x features], if `average`
  Memory<T> logits_;               // logits_shape(): logits, probabilities, their gradient
  Memory<T> incoming_, outgoing_;  // the gradient of some layer's output, used in turn
};

}  // namespace rondo::trainer
