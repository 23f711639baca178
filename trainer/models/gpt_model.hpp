// The GPT (gpt.hpp) over one of the layers' back ends. Parameters and layers are numbered in
// backward's order: head, blocks from the last to the first with the perceptron before the
// attention, embeddings. What a sublayer adds to the residual stream is not added at once but by the
// next layer norm, which reads the stream anyway.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "trainer/layers/operands.hpp"
#include "trainer/models/gpt.hpp"

namespace rondo::trainer {

template <class Layers>
class Gpt : public Model<typename Layers::Element> {
  using T = typename Layers::Element;
  using W = typename Layers::Wide;
  template <class Number>
  using Memory = typename Layers::template Memory<Number>;

 public:
  Gpt(Layers layers, const GptShape& shape) : shape_(shape), layers_(std::move(layers)) {
    describe();
    allocate();
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<Parameter>& buffers() const override { return buffers_; }
  const std::vector<std::string>& layers() const override { return layer_names_; }
  size_t loss_terms() const override { return shape_.context; }
  size_t classes() const override { return shape_.vocabulary; }
  const T* probabilities() const override { return logits_.data(); }
  size_t activation_bytes() const override { return layers_.bytes(); }

  double gemm_operations() const override {
    const auto width = static_cast<double>(shape_.width);
    const auto layers = static_cast<double>(shape_.layers);
    const double weights = 12 * layers * width * width + width * double(shape_.vocabulary);
    return 6 * weights * static_cast<double>(shape_.context) +
           layers * attention_operations(attention_shape(1));
  }

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
    const Now now{.batch = batch, .pass = pass, .rows = batch.size * shape_.context};
    size_t layer = layer_names_.size();  // forward visits them the other way round
    pass.forward_begins(--layer);
    embed(now);
    delta_ = nullptr;
    for (size_t b = 0; b < shape_.layers; ++b) {
      const bool skipped = skips(now, b);
      pass.forward_begins(--layer);
      if (!skipped) attention(now, b);
      pass.forward_begins(--layer);
      if (!skipped) perceptron(now, b);
    }
    pass.forward_begins(--layer);
    normalise(now, final_norm_, final_);
    layers_.multiply_forward(head(now), final_.y.data(), values_[wte_], logits_.data());
    layers_.softmax_cross_entropy_forward(logits_shape(now.rows), inputs_.targets, pass.training,
                                          logits_.data(), loss, now.pass.loss_factors);
    return layers_.status();
  }

  Status count_correct(const Batch& batch, double* correct) override {
    layers_.count_correct(logits_shape(batch.size * shape_.context), inputs_.targets,
                          logits_.data(), correct);
    return layers_.status();
  }

  Status backward(const Batch& batch, const Pass& pass, double scale, bool accumulate,
                  BackwardListener& listener) override {
    const Backward now{{.batch = batch, .pass = pass, .rows = batch.size * shape_.context},
                       scale,
                       accumulate,
                       listener};
    int layer = 0;
    listener.layer_begins(layer++);
    head_backward(now);
    for (size_t b = shape_.layers; b-- > 0;) {
      const bool skipped = skips(now, b);
      listener.layer_begins(layer++);
      skipped ? skip(now, b, kMlpProjection, kAttentionProjection) : perceptron_backward(now, b);
      listener.layer_begins(layer++);
      skipped ? skip(now, b, kAttentionProjection, kInBlock) : attention_backward(now, b);
    }
    listener.layer_begins(layer);
    embed_backward(now);
    return layers_.status();
  }

 private:
  /// A block's parameters, in backward's order. A linear layer's weight follows its bias, a norm's
  /// bias its weight.
  enum InBlock : size_t {
    kMlpProjection = 0,
    kMlpExpansion = 2,
    kSecondNorm = 4,
    kAttentionProjection = 6,
    kAttentionInput = 8,
    kFirstNorm = 10,
    kInBlock = 12,
  };
  /// Whose random numbers they are: the embedding's are 0, each block has four.
  enum RandomLayer : size_t { kProbabilities = 1, kAttentionOut = 2, kMlpOut = 3, kSkipBlock = 4 };
  static constexpr size_t random_layer(size_t block, RandomLayer which) {
    return 4 * block + which;
  }

  static constexpr size_t kPanelBytes = size_t{4} << 20;  // of a large weight's gradient, told on
                                                          // its own

  struct Now {
    const Batch& batch;
    const Pass& pass;
    size_t rows;  // tokens of the batch
  };
  struct Backward : Now {
    double scale;
    bool accumulate;
    BackwardListener& listener;
  };
  /// What a layer norm leaves for backward; [rows x width] and [rows].
  struct Normalised {
    Memory<T> normal, y;
    Memory<W> reciprocal;
  };
  struct TransformerBlock {
    Normalised first, second;
    Memory<T> qkv;       // [rows x 3 width]
    Memory<W> kept;      // of attention
    Memory<T> attended;  // [rows x width]
    Memory<T> slope;     // of GELU, [rows x 4 width]
    Memory<T> hidden;    // [rows x 4 width]
  };

  // Forward.

  void embed(const Now& now) {
    layers_.embedding_forward({.symbols = now.rows,
                               .size = shape_.width,
                               .context = shape_.context,
                               .x = inputs_.tokens,
                               .table = values_[wte_],
                               .positions = values_[wpe_],
                               .dropout = dropout(now, 0),
                               .y = stream_.data()});
  }

  void attention(const Now& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    normalise(now, of_block(b, kFirstNorm), block.first);
    const size_t in = of_block(b, kAttentionInput);
    layers_.linear_forward(linear(now, shape_.width, 3 * shape_.width), block.first.y.data(),
                           values_[in + 1], values_[in], false, block.qkv.data());
    layers_.attention_forward(attention_of(now, b));
    project(now, shape_.width, of_block(b, kAttentionProjection), block.attended,
            random_layer(b, kAttentionOut));
  }

  void perceptron(const Now& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    normalise(now, of_block(b, kSecondNorm), block.second);
    const size_t expansion = of_block(b, kMlpExpansion);
    layers_.multiply_forward(linear(now, shape_.width, 4 * shape_.width), block.second.y.data(),
                             values_[expansion + 1], block.slope.data());
    layers_.gelu_forward(now.rows, 4 * shape_.width, values_[expansion], block.slope.data(),
                         block.hidden.data());
    project(now, 4 * shape_.width, of_block(b, kMlpProjection), block.hidden,
            random_layer(b, kMlpOut));
  }

  /// The next addition to the residual stream: a linear layer of x.
  void project(const Now& now, size_t in, size_t parameter, const Memory<T>& x, size_t random) {
    layers_.multiply_forward(linear(now, in, shape_.width), x.data(), values_[parameter + 1],
                             narrow_.data());
    delta_ = narrow_.data();
    delta_bias_ = values_[parameter];
    const Dropout dropped = dropout(now, random);
    if (dropped.probability == 0) return;
    layers_.add_bias(now.rows, shape_.width, delta_bias_, narrow_.data());
    layers_.drop(dropped, now.batch.size, shape_.context * shape_.width, narrow_.data());
    delta_bias_ = nullptr;
  }

  /// Of the residual stream, after what there is to add to it.
  void normalise(const Now& now, size_t parameter, Normalised& to) {
    layers_.layer_norm_forward({.rows = now.rows,
                                .width = shape_.width,
                                .delta = delta_,
                                .bias = delta_ == nullptr ? nullptr : delta_bias_,
                                .gamma = values_[parameter],
                                .beta = values_[parameter + 1],
                                .x = stream_.data(),
                                .normal = to.normal.data(),
                                .reciprocal = to.reciprocal.data(),
                                .y = to.y.data()});
    delta_ = nullptr;
  }

  // Backward. stream_ is the gradient of the residual stream now.

  void head_backward(const Backward& now) {
    const LinearShape shape = head(now);
    layers_.softmax_cross_entropy_backward(logits_shape(now.rows), inputs_.targets, now.scale,
                                           logits_.data());
    finish_weight(now, shape, wte_, logits_.data(), final_.y.data(), shape_.split_tied);
    layers_.multiply_input_gradient(shape, logits_.data(), values_[wte_], narrow_.data());
    layers_.clear(now.rows * shape_.width, stream_.data());
    normalise_backward(now, final_norm_, final_);
  }

  void perceptron_backward(const Backward& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    const LinearShape shape = linear(now, shape_.width, 4 * shape_.width);
    project_backward(now, 4 * shape_.width, of_block(b, kMlpProjection), block.hidden,
                     random_layer(b, kMlpOut));
    const size_t expansion = of_block(b, kMlpExpansion);
    layers_.gelu_backward(shape, block.slope.data(), wide_.data(), now.accumulate,
                          gradients_[expansion]);
    tell(now, expansion);
    finish_weight(now, shape, expansion + 1, wide_.data(), block.second.y.data());
    layers_.multiply_input_gradient(shape, wide_.data(), values_[expansion + 1], narrow_.data());
    normalise_backward(now, of_block(b, kSecondNorm), block.second);
  }

  void attention_backward(const Backward& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    const LinearShape shape = linear(now, shape_.width, 3 * shape_.width);
    project_backward(now, shape_.width, of_block(b, kAttentionProjection), block.attended,
                     random_layer(b, kAttentionOut));
    // The gradient of `attended` fills wide_'s first quarter; the rest has room for exactly qkv's.
    T* dqkv = wide_.data() + now.rows * shape_.width;
    layers_.attention_backward(attention_of(now, b), wide_.data(), dqkv);
    const size_t in = of_block(b, kAttentionInput);
    finish_bias(now, 3 * shape_.width, in, dqkv);
    finish_weight(now, shape, in + 1, dqkv, block.first.y.data());
    layers_.multiply_input_gradient(shape, dqkv, values_[in + 1], narrow_.data());
    normalise_backward(now, of_block(b, kFirstNorm), block.first);
  }

  /// From the stream's gradient to that of x, in wide_.
  void project_backward(const Backward& now, size_t in, size_t parameter, const Memory<T>& x,
                        size_t random) {
    const LinearShape shape = linear(now, in, shape_.width);
    const T* dy = stream_.data();
    const Dropout dropped = dropout(now, random);
    if (dropped.probability > 0) {
      layers_.copy(now.rows * shape_.width, stream_.data(), narrow_.data());
      layers_.drop(dropped, now.batch.size, shape_.context * shape_.width, narrow_.data());
      dy = narrow_.data();
    }
    finish_bias(now, shape_.width, parameter, dy);
    finish_weight(now, shape, parameter + 1, dy, x.data());
    layers_.multiply_input_gradient(shape, dy, values_[parameter + 1], wide_.data());
  }

  /// From the gradient of the norm's output, in narrow_, to the stream's.
  void normalise_backward(const Backward& now, size_t parameter, const Normalised& from) {
    layers_.layer_norm_backward({.rows = now.rows,
                                 .width = shape_.width,
                                 .normal = from.normal.data(),
                                 .reciprocal = from.reciprocal.data(),
                                 .gamma = values_[parameter],
                                 .dy = narrow_.data(),
                                 .dgamma = gradients_[parameter],
                                 .dbeta = gradients_[parameter + 1],
                                 .dx = stream_.data()},
                                now.accumulate);
    tell(now, parameter);
    tell(now, parameter + 1);
  }

  void embed_backward(const Backward& now) {
    const size_t sample = shape_.context * shape_.width;
    layers_.drop(dropout(now, 0), now.batch.size, sample, stream_.data());
    layers_.linear_backward_bias({.rows = now.batch.size, .in = 0, .out = sample}, stream_.data(),
                                 now.accumulate, gradients_[wpe_]);
    tell(now, wpe_);
    const size_t rows = parameters_.size() - 1;  // wte itself, if its shares are not split
    if (shape_.split_tied && !now.accumulate) {
      layers_.clear(parameters_[rows].count(), gradients_[rows]);
    }
    layers_.embedding_backward(now.rows, shape_.width, inputs_, stream_.data(), gradients_[rows]);
    tell(now, rows);
  }

  void finish_bias(const Backward& now, size_t width, size_t parameter, const T* dy) {
    layers_.linear_backward_bias({.rows = now.rows, .in = 0, .out = width}, dy, now.accumulate,
                                 gradients_[parameter]);
    tell(now, parameter);
  }

  /// A large gradient in panels of rows, each told when it is done: the first travels while the
  /// last is computed. Where the gradient is not reported yet, one product makes all of it. Panels
  /// begin at multiples of 64 rows, since a GPU multiplies slowly where the numbers in dy from which
  /// a product begins are not aligned.
  void finish_weight(const Backward& now, const LinearShape& shape, size_t parameter, const T* dy,
                     const T* x, bool tells = true) {
    const size_t bytes = shape.out * shape.in * sizeof(T);
    const size_t panels = tells ? (bytes + kPanelBytes - 1) / kPanelBytes : 1;
    const size_t even = (shape.out + panels - 1) / panels;
    const size_t rows = panels == 1 ? even : (even + 63) / 64 * 64;
    for (size_t first = 0; first < shape.out; first += rows) {
      const size_t end = std::min(first + rows, shape.out);
      layers_.multiply_weight_gradient(shape, {.first = first, .count = end - first}, dy, x,
                                       gradients_[parameter], now.accumulate);
      if (tells) now.listener.gradient_ready(static_cast<int>(parameter), end * shape.in);
    }
  }

  void tell(const Backward& now, size_t parameter) const {
    now.listener.gradient_ready(static_cast<int>(parameter), parameters_[parameter].count());
  }

  void skip(const Backward& now, size_t b, size_t first, size_t end) const {
    for (size_t p = first; p < end; ++p) {
      now.listener.gradient_skipped(static_cast<int>(block_begins_[b] + p));
    }
  }

  // Random numbers: the same in forward and backward.

  Dropout dropout(const Now& now, size_t layer) const {
    if (!now.pass.training || shape_.dropout == 0) return {};
    return {.probability = shape_.dropout, .keys = inputs_.keys, .layer = layer};
  }

  bool skips(const Now& now, size_t b) const {
    if (!now.pass.training || shape_.layer_drop == 0) return false;
    if (now.batch.size == 0) return true;  // uses nothing: the other ranks decide
    const uint64_t sample = sample_key(now.pass.key(), now.batch.ids[0]);
    return random_unit(layer_key(sample, random_layer(b, kSkipBlock))) < shape_.layer_drop;
  }

  // Shapes and indices.

  size_t of_block(size_t b, InBlock which) const { return block_begins_[b] + which; }
  LinearShape linear(const Now& now, size_t in, size_t out) const {
    return {.rows = now.rows, .in = in, .out = out};
  }
  LinearShape head(const Now& now) const {
    LinearShape shape = linear(now, shape_.width, shape_.vocabulary);
    shape.stride = layers_.row_stride(shape.out);
    return shape;
  }
  LogitsShape logits_shape(size_t rows) const {
    return {.rows = rows,
            .classes = shape_.vocabulary,
            .stride = layers_.row_stride(shape_.vocabulary)};
  }
  AttentionShape attention_shape(size_t samples) const {
    return {.samples = samples,
            .context = shape_.context,
            .heads = shape_.heads,
            .width = shape_.width};
  }
  Attention<T, W> attention_of(const Now& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    return {.shape = attention_shape(now.batch.size),
            .dropout = dropout(now, random_layer(b, kProbabilities)),
            .qkv = block.qkv.data(),
            .kept = block.kept.data(),
            .scratch = scratch_.data(),
            .y = block.attended.data()};
  }

  // Construction.

  void describe() {
    const size_t width = shape_.width;
    const double projection = kDeviation / std::sqrt(2 * static_cast<double>(shape_.layers));
    const auto add_wte = [&] {
      wte_ = parameters_.size();
      describe_matrix("wte.weight", shape_.vocabulary, width);
    };
    layer_names_.push_back("head");
    if (shape_.split_tied) add_wte();
    final_norm_ = describe_norm("ln_f");
    block_begins_.resize(shape_.layers);
    for (size_t b = shape_.layers; b-- > 0;) {
      const std::string block = "h." + std::to_string(b) + ".";
      layer_names_.push_back(block + "mlp");
      layer_names_.push_back(block + "attn");
      const size_t first = parameters_.size();
      block_begins_[b] = first;
      describe_linear(block + "mlp.c_proj", 4 * width, width, projection);
      describe_linear(block + "mlp.c_fc", width, 4 * width, kDeviation);
      describe_norm(block + "ln_2");
      describe_linear(block + "attn.c_proj", width, width, projection);
      describe_linear(block + "attn.c_attn", width, 3 * width, kDeviation);
      describe_norm(block + "ln_1");
      for (size_t p = first; p < parameters_.size(); ++p) {
        parameters_[p].may_skip = shape_.layer_drop > 0;
      }
    }
    layer_names_.push_back("embedding");
    wpe_ = parameters_.size();
    describe_matrix("wpe.weight", shape_.context, width);
    if (!shape_.split_tied) return add_wte();
    describe_matrix("wte.weight rows", shape_.vocabulary, width);
    parameters_.back().init = {};
    parameters_.back().adds_to = static_cast<int>(wte_);
  }

  void describe_matrix(const std::string& name, size_t rows, size_t columns,
                       double deviation = kDeviation) {
    parameters_.push_back(
        {.name = name, .shape = {rows, columns}, .init = {Init::kNormal, deviation}});
  }
  void describe_vector(const std::string& name, size_t count, double value) {
    parameters_.push_back(
        {.name = name, .shape = {count}, .init = {Init::kConstant, value}, .decays = false});
  }
  void describe_linear(const std::string& name, size_t in, size_t out, double deviation) {
    describe_vector(name + ".bias", out, 0);
    describe_matrix(name + ".weight", out, in, deviation);
  }
  size_t describe_norm(const std::string& name) {
    describe_vector(name + ".weight", shape_.width, 1);
    describe_vector(name + ".bias", shape_.width, 0);
    return parameters_.size() - 2;
  }

  void allocate() {
    const size_t rows = shape_.batch * shape_.context, width = shape_.width;
    const AttentionShape whole = attention_shape(shape_.batch);
    layers_.expect({.samples = shape_.batch,
                    .tokens = shape_.context,
                    .symbols = shape_.vocabulary,
                    .embedded = width,
                    .targets = shape_.context,
                    .draws = shape_.dropout > 0});
    layers_.expect_sums(rows, 4 * width);
    layers_.expect_sums(shape_.batch, shape_.context * width);
    blocks_.resize(shape_.layers);
    for (TransformerBlock& block : blocks_) {
      allocate(block.first);
      allocate(block.second);
      layers_.allocate(block.qkv, rows * 3 * width);
      layers_.allocate(block.kept, layers_.attention_kept(whole));
      layers_.allocate(block.attended, rows * width);
      layers_.allocate(block.slope, rows * 4 * width);
      layers_.allocate(block.hidden, rows * 4 * width);
    }
    allocate(final_);
    layers_.allocate(stream_, rows * width);
    layers_.allocate(narrow_, rows * width);
    layers_.allocate(wide_, rows * 4 * width);
    layers_.allocate(logits_, rows * layers_.row_stride(shape_.vocabulary));
    layers_.allocate(scratch_, layers_.attention_scratch(whole));
  }
  void allocate(Normalised& norm) {
    const size_t rows = shape_.batch * shape_.context;
    layers_.allocate(norm.normal, rows * shape_.width);
    layers_.allocate(norm.y, rows * shape_.width);
    layers_.allocate(norm.reciprocal, rows);
  }

  static constexpr double kDeviation = 0.02;

  const GptShape shape_;
  Layers layers_;
  std::vector<Parameter> parameters_, buffers_;  // no buffers
  std::vector<std::string> layer_names_;
  size_t wte_ = 0, wpe_ = 0, final_norm_ = 0;  // indices into parameters_
  std::vector<size_t> block_begins_;           // and of each block's first
  std::vector<T*> values_, gradients_;         // by parameter

  Inputs<T> inputs_;  // of the last forward pass
  std::vector<TransformerBlock> blocks_;
  Normalised final_;
  Memory<T> stream_;               // [rows x width]: the residual stream, then its gradient
  const T* delta_ = nullptr;       // to be added to the stream, with delta_bias_; null: nothing
  const T* delta_bias_ = nullptr;  // null: delta_ has it
  Memory<T> narrow_;               // [rows x width]: additions to the stream; gradients of norms
  Memory<T> wide_;                 // [rows x 4 width]: gradients inside a block
  Memory<T> logits_;               // logits_shape(): logits, probabilities, their gradient
  Memory<T> scratch_;              // attention's
};

}  // namespace rondo::trainer
