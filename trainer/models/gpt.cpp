// See gpt.hpp. Parameters and layers are numbered in backward's order: head, blocks from the last
// to the first with the perceptron before the attention, embeddings. What a sublayer adds to the
// residual stream is not added at once but by the next layer norm, which reads the stream anyway.
#include "trainer/models/gpt.hpp"

#include <algorithm>
#include <cmath>

#include "trainer/layers/host/attention.hpp"
#include "trainer/layers/host/dropout.hpp"
#include "trainer/layers/host/gelu.hpp"
#include "trainer/layers/host/layer_norm.hpp"
#include "trainer/layers/host/layers.hpp"
#include "trainer/layers/host/rows.hpp"

namespace rondo::trainer {
namespace {

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
constexpr size_t random_layer(size_t block, RandomLayer which) { return 4 * block + which; }

constexpr size_t kPanelBytes = size_t{4} << 20;  // of a large weight's gradient, told on its own

template <class T>
class Gpt : public Model<T> {
 public:
  explicit Gpt(const GptShape& shape) : shape_(shape) {
    describe();
    allocate();
  }

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<Parameter>& buffers() const override { return buffers_; }
  const std::vector<std::string>& layers() const override { return layers_; }
  size_t loss_terms() const override { return shape_.context; }
  size_t classes() const override { return shape_.vocabulary; }
  const T* probabilities() const override { return logits_.data(); }
  size_t activation_bytes() const override { return bytes_; }

  double gemm_operations() const override {
    const auto width = static_cast<double>(shape_.width);
    const auto layers = static_cast<double>(shape_.layers);
    const double weights = 12 * layers * width * width + width * double(shape_.vocabulary);
    return 6 * weights * static_cast<double>(shape_.context) +
           layers * attention_operations(attention_shape(1));
  }

  void bind(const std::vector<T*>& parameters, const std::vector<T*>& gradients,
            const std::vector<T*>& /*buffers*/) override {
    values_ = parameters;
    gradients_ = gradients;
  }

  Result<double> forward(const Batch& batch, const Pass& pass) override {
    const Now now{.batch = batch, .pass = pass, .rows = batch.size * shape_.context};
    size_t layer = layers_.size();  // forward visits them the other way round
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
    multiply_forward(linear(now, shape_.width, shape_.vocabulary), final_.y.data(), values_[wte_],
                     logits_.data());
    return softmax_cross_entropy_forward(now.rows, shape_.vocabulary, batch.targets,
                                         logits_.data());
  }

  Status backward(const Batch& batch, const Pass& pass, T scale, bool accumulate,
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
    return {};
  }

 private:
  struct Now {
    const Batch& batch;
    const Pass& pass;
    size_t rows;  // tokens of the batch
  };
  struct Backward : Now {
    T scale;
    bool accumulate;
    BackwardListener& listener;
  };
  /// What a layer norm leaves for backward; [rows x width] and [rows].
  struct Normalised {
    std::vector<T> normal, y, reciprocal;
  };
  struct TransformerBlock {
    Normalised first, second;
    std::vector<T> qkv;            // [rows x 3 width]
    std::vector<T> probabilities;  // see attention.hpp
    std::vector<T> attended;       // [rows x width]
    std::vector<T> slope;          // of GELU, [rows x 4 width]
    std::vector<T> hidden;         // [rows x 4 width]
  };

  // Forward.

  void embed(const Now& now) {
    const size_t sample = shape_.context * shape_.width;
    embedding_forward(now.rows, shape_.width, now.batch.tokens, values_[wte_], stream_.data());
    // Every sample is a row, and all position embeddings together are a bias of it.
    rows_kernels<T>().add_bias(now.batch.size, sample, values_[wpe_], false, stream_.data());
    drop(dropout(now, 0), now.batch.size, sample, stream_.data());
  }

  void attention(const Now& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    normalise(now, of_block(b, kFirstNorm), block.first);
    const size_t in = of_block(b, kAttentionInput);
    linear_forward(linear(now, shape_.width, 3 * shape_.width), block.first.y.data(),
                   values_[in + 1], values_[in], false, block.qkv.data());
    attention_forward<T>({.shape = attention_shape(now.batch.size),
                          .dropout = dropout(now, random_layer(b, kProbabilities)),
                          .qkv = block.qkv.data(),
                          .probabilities = block.probabilities.data(),
                          .scratch = scratch_.data(),
                          .y = block.attended.data()});
    project(now, shape_.width, of_block(b, kAttentionProjection), block.attended,
            random_layer(b, kAttentionOut));
  }

  void perceptron(const Now& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    normalise(now, of_block(b, kSecondNorm), block.second);
    const size_t expansion = of_block(b, kMlpExpansion);
    multiply_forward(linear(now, shape_.width, 4 * shape_.width), block.second.y.data(),
                     values_[expansion + 1], block.slope.data());
    gelu_kernels<T>().forward(now.rows, 4 * shape_.width, values_[expansion], block.slope.data(),
                              block.hidden.data());
    project(now, 4 * shape_.width, of_block(b, kMlpProjection), block.hidden,
            random_layer(b, kMlpOut));
  }

  /// The next addition to the residual stream: a linear layer of x.
  void project(const Now& now, size_t in, size_t parameter, const std::vector<T>& x,
               size_t random) {
    multiply_forward(linear(now, in, shape_.width), x.data(), values_[parameter + 1],
                     narrow_.data());
    delta_ = narrow_.data();
    delta_bias_ = values_[parameter];
    const Dropout dropped = dropout(now, random);
    if (dropped.probability == 0) return;
    rows_kernels<T>().add_bias(now.rows, shape_.width, delta_bias_, false, narrow_.data());
    drop(dropped, now.batch.size, shape_.context * shape_.width, narrow_.data());
    delta_bias_ = nullptr;
  }

  /// Of the residual stream, after what there is to add to it.
  void normalise(const Now& now, size_t parameter, Normalised& to) {
    layer_norm_kernels<T>().forward({.rows = now.rows,
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
    const LinearShape shape = linear(now, shape_.width, shape_.vocabulary);
    softmax_cross_entropy_backward(now.rows, shape_.vocabulary, now.batch.targets, now.scale,
                                   logits_.data());
    finish_weight(now, shape, wte_, logits_.data(), final_.y.data(), shape_.split_tied);
    multiply_input_gradient(shape, logits_.data(), values_[wte_], narrow_.data());
    std::fill_n(stream_.data(), now.rows * shape_.width, T{0});
    normalise_backward(now, final_norm_, final_);
  }

  void perceptron_backward(const Backward& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    const LinearShape shape = linear(now, shape_.width, 4 * shape_.width);
    project_backward(now, 4 * shape_.width, of_block(b, kMlpProjection), block.hidden,
                     random_layer(b, kMlpOut));
    const size_t expansion = of_block(b, kMlpExpansion);
    if (!now.accumulate) std::fill_n(gradients_[expansion], 4 * shape_.width, T{0});
    gelu_kernels<T>().backward(now.rows, 4 * shape_.width, block.slope.data(), wide_.data(),
                               gradients_[expansion]);
    tell(now, expansion);
    finish_weight(now, shape, expansion + 1, wide_.data(), block.second.y.data());
    multiply_input_gradient(shape, wide_.data(), values_[expansion + 1], narrow_.data());
    normalise_backward(now, of_block(b, kSecondNorm), block.second);
  }

  void attention_backward(const Backward& now, size_t b) {
    TransformerBlock& block = blocks_[b];
    const LinearShape shape = linear(now, shape_.width, 3 * shape_.width);
    project_backward(now, shape_.width, of_block(b, kAttentionProjection), block.attended,
                     random_layer(b, kAttentionOut));
    // The gradient of `attended` fills wide_'s first quarter; behind it is room for just qkv's.
    T* dqkv = wide_.data() + now.rows * shape_.width;
    rondo::trainer::attention_backward<T>({.shape = attention_shape(now.batch.size),
                                           .dropout = dropout(now, random_layer(b, kProbabilities)),
                                           .qkv = block.qkv.data(),
                                           .probabilities = block.probabilities.data(),
                                           .dy = wide_.data(),
                                           .scratch = scratch_.data(),
                                           .dqkv = dqkv});
    const size_t in = of_block(b, kAttentionInput);
    finish_bias(now, 3 * shape_.width, in, dqkv);
    finish_weight(now, shape, in + 1, dqkv, block.first.y.data());
    multiply_input_gradient(shape, dqkv, values_[in + 1], narrow_.data());
    normalise_backward(now, of_block(b, kFirstNorm), block.first);
  }

  /// From the stream's gradient to that of x, in wide_.
  void project_backward(const Backward& now, size_t in, size_t parameter, const std::vector<T>& x,
                        size_t random) {
    const LinearShape shape = linear(now, in, shape_.width);
    const T* dy = stream_.data();
    const Dropout dropped = dropout(now, random);
    if (dropped.probability > 0) {
      std::copy_n(stream_.data(), now.rows * shape_.width, narrow_.data());
      drop(dropped, now.batch.size, shape_.context * shape_.width, narrow_.data());
      dy = narrow_.data();
    }
    finish_bias(now, shape_.width, parameter, dy);
    finish_weight(now, shape, parameter + 1, dy, x.data());
    multiply_input_gradient(shape, dy, values_[parameter + 1], wide_.data());
  }

  /// From the gradient of the norm's output, in narrow_, to the stream's.
  void normalise_backward(const Backward& now, size_t parameter, const Normalised& from) {
    for (const size_t p : {parameter, parameter + 1}) {
      if (!now.accumulate) std::fill_n(gradients_[p], shape_.width, T{0});
    }
    layer_norm_kernels<T>().backward({.rows = now.rows,
                                      .width = shape_.width,
                                      .normal = from.normal.data(),
                                      .reciprocal = from.reciprocal.data(),
                                      .gamma = values_[parameter],
                                      .dy = narrow_.data(),
                                      .dgamma = gradients_[parameter],
                                      .dbeta = gradients_[parameter + 1],
                                      .dx = stream_.data()});
    tell(now, parameter);
    tell(now, parameter + 1);
  }

  void embed_backward(const Backward& now) {
    const size_t sample = shape_.context * shape_.width;
    drop(dropout(now, 0), now.batch.size, sample, stream_.data());
    linear_backward_bias({.rows = now.batch.size, .in = 0, .out = sample}, stream_.data(),
                         now.accumulate, gradients_[wpe_]);
    tell(now, wpe_);
    const size_t rows = parameters_.size() - 1;  // wte itself, if its shares are not split
    if (shape_.split_tied && !now.accumulate) {
      std::fill_n(gradients_[rows], parameters_[rows].count(), T{0});
    }
    embedding_backward(now.rows, shape_.width, now.batch.tokens, stream_.data(), gradients_[rows]);
    tell(now, rows);
  }

  void finish_bias(const Backward& now, size_t width, size_t parameter, const T* dy) {
    linear_backward_bias({.rows = now.rows, .in = 0, .out = width}, dy, now.accumulate,
                         gradients_[parameter]);
    tell(now, parameter);
  }

  /// A large gradient in panels of rows, each told when it is done: the first travels while the
  /// last is computed.
  void finish_weight(const Backward& now, const LinearShape& shape, size_t parameter, const T* dy,
                     const T* x, bool tells = true) {
    const size_t panels = (shape.out * shape.in * sizeof(T) + kPanelBytes - 1) / kPanelBytes;
    const size_t rows = (shape.out + panels - 1) / panels;
    for (size_t first = 0; first < shape.out; first += rows) {
      const size_t end = std::min(first + rows, shape.out);
      multiply_weight_gradient(shape, {.first = first, .count = end - first}, dy, x,
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

  Dropout dropout(const Now& now, size_t layer) {
    if (!now.pass.training || shape_.dropout == 0) return {};
    for (size_t s = 0; s < now.batch.size; ++s) {
      keys_[s] = random_key(now.pass, now.batch.ids[s], layer);
    }
    return {.probability = shape_.dropout, .keys = keys_.data()};
  }

  bool skips(const Now& now, size_t b) const {
    if (!now.pass.training || shape_.layer_drop == 0) return false;
    if (now.batch.size == 0) return true;  // uses nothing: the other ranks decide
    const uint64_t key = random_key(now.pass, now.batch.ids[0], random_layer(b, kSkipBlock));
    return random_unit(key) < shape_.layer_drop;
  }

  // Shapes and indices.

  size_t of_block(size_t b, InBlock which) const { return block_begins_[b] + which; }
  LinearShape linear(const Now& now, size_t in, size_t out) const {
    return {.rows = now.rows, .in = in, .out = out};
  }
  AttentionShape attention_shape(size_t samples) const {
    return {.samples = samples,
            .context = shape_.context,
            .heads = shape_.heads,
            .width = shape_.width};
  }

  // Construction.

  void describe() {
    const size_t width = shape_.width;
    const double projection = kDeviation / std::sqrt(2 * static_cast<double>(shape_.layers));
    const auto add_wte = [&] {
      wte_ = parameters_.size();
      describe_matrix("wte.weight", shape_.vocabulary, width);
    };
    layers_.push_back("head");
    if (shape_.split_tied) add_wte();
    final_norm_ = describe_norm("ln_f");
    block_begins_.resize(shape_.layers);
    for (size_t b = shape_.layers; b-- > 0;) {
      const std::string block = "h." + std::to_string(b) + ".";
      layers_.push_back(block + "mlp");
      layers_.push_back(block + "attn");
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
    layers_.push_back("embedding");
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
    blocks_.resize(shape_.layers);
    for (TransformerBlock& block : blocks_) {
      reserve_norm(block.first);
      reserve_norm(block.second);
      reserve(block.qkv, rows * 3 * width);
      reserve(block.probabilities,
              shape_.batch * shape_.heads * probabilities_per_head(shape_.context));
      reserve(block.attended, rows * width);
      reserve(block.slope, rows * 4 * width);
      reserve(block.hidden, rows * 4 * width);
    }
    reserve_norm(final_);
    reserve(stream_, rows * width);
    reserve(narrow_, rows * width);
    reserve(wide_, rows * 4 * width);
    reserve(logits_, rows * shape_.vocabulary);
    reserve(scratch_, attention_scratch(attention_shape(1)));
    reserve(keys_, shape_.batch);
  }
  void reserve_norm(Normalised& norm) {
    const size_t rows = shape_.batch * shape_.context;
    reserve(norm.normal, rows * shape_.width);
    reserve(norm.y, rows * shape_.width);
    reserve(norm.reciprocal, rows);
  }
  template <class Number>
  void reserve(std::vector<Number>& numbers, size_t count) {
    numbers.resize(count);
    bytes_ += count * sizeof(Number);
  }

  static constexpr double kDeviation = 0.02;

  const GptShape shape_;
  std::vector<Parameter> parameters_, buffers_;  // no buffers
  std::vector<std::string> layers_;
  size_t wte_ = 0, wpe_ = 0, final_norm_ = 0;  // indices into parameters_
  std::vector<size_t> block_begins_;           // and of each block's first
  std::vector<T*> values_, gradients_;         // by parameter

  std::vector<TransformerBlock> blocks_;
  Normalised final_;
  std::vector<T> stream_;          // [rows x width]: the residual stream, then its gradient
  const T* delta_ = nullptr;       // to be added to the stream, with delta_bias_; null: nothing
  const T* delta_bias_ = nullptr;  // null: delta_ has it
  std::vector<T> narrow_;          // [rows x width]: additions to the stream; gradients of norms
  std::vector<T> wide_;            // [rows x 4 width]: gradients inside a block
  std::vector<T> logits_;          // [rows x vocabulary]: logits, probabilities, their gradient
  std::vector<T> scratch_;         // attention's
  std::vector<uint64_t> keys_;     // by sample
  size_t bytes_ = 0;
};

}  // namespace

template <class T>
std::unique_ptr<Model<T>> make_gpt(const GptShape& shape) {
  return std::make_unique<Gpt<T>>(shape);
}

template std::unique_ptr<Model<float>> make_gpt(const GptShape&);
template std::unique_ptr<Model<double>> make_gpt(const GptShape&);

}  // namespace rondo::trainer
