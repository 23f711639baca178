// How long the layers of GPT-2 take on a GPU, each beside its bound: the bytes that it must move at
// the rate of the device's copy, or the operations of its products at a large product's rate, both
// measured in the same rounds. Not a test: nothing is checked.
//
//     layers_bench_cuda [--batch N] [--context N] [--width N] [--heads N] [--vocabulary N]
//                       [--dtype bf16|fp32] [--rounds N] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/layers/cuda/layers_on_device.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer {
namespace {

struct BenchOptions {
  size_t batch = 16, context = 1024, width = 768, heads = 12, vocabulary = 50257;
  int rounds = 11;
  std::string dtype = "bf16", json;

  size_t rows() const { return batch * context; }
};

/// What a layer must at least move and compute; `run` enqueues it once.
struct LayerSubject {
  std::string name;
  double bytes, operations;  // of products; an addition and a multiplication count two
  std::function<void()> run;
  std::vector<double> us = {}, share = {};
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class T>
class LayersBench {
 public:
  LayersBench(Device& device, std::unique_ptr<cuda::DeviceProducts> products,
              const BenchOptions& options)
      : device_(device), layers_(device, std::move(products)), o_(options) {
    const size_t rows = o_.rows(), width = o_.width;
    layers_.expect({.samples = o_.batch,
                    .tokens = o_.context,
                    .symbols = o_.vocabulary,
                    .embedded = width,
                    .targets = o_.context});
    layers_.expect_sums(rows, std::max(4 * width, 2 * width));
    layers_.allocate(logits_, rows * layers_.row_stride(o_.vocabulary));
    for (auto* each : {&narrow_, &other_, &more_}) layers_.allocate(*each, rows * width);
    for (auto* each : {&wide_, &wider_}) layers_.allocate(*each, rows * 4 * width);
    layers_.allocate(table_, o_.vocabulary * width);
    layers_.allocate(weight_, 4 * width * width);
    layers_.allocate(vector_, 4 * width);
    layers_.allocate(
        per_row_,
        layers_.attention_kept(
            {.samples = o_.batch, .context = o_.context, .heads = o_.heads, .width = width}));
    layers_.allocate(states_, 3 * 4 * width * width);
    layers_.allocate(factors_, 1);
    layers_.allocate(loss_, 1);
    tokens_.resize(rows);
    ids_.resize(o_.batch);
    for (size_t i = 0; i < rows; ++i) {
      // One is as frequent as a text's most frequent word.
      tokens_[i] = i % 20 == 0 ? 0 : static_cast<int32_t>(mix(i) % o_.vocabulary);
    }
    describe();
  }

  Status measure() {
    auto& cuda = device_.cuda();
    begin_ = RONDO_TRY(cuda.create_timed_event());
    end_ = RONDO_TRY(cuda.create_timed_event());
    for (int warm_up = 0; warm_up < 50; ++warm_up) RONDO_TRY(time_of(product_).status());
    for (int round = 0; round < o_.rounds; ++round) {
      for (LayerSubject& subject : subjects_) {
        // Beside each layer, because clocks drift.
        copy_us_.push_back(RONDO_TRY(time_of(copy_)));
        product_us_.push_back(RONDO_TRY(time_of(product_)));
        const double us = RONDO_TRY(time_of(subject));
        const double bound =
            std::max(subject.bytes / copy_.bytes * copy_us_.back(),
                     subject.operations / product_.operations * product_us_.back());
        subject.us.push_back(us);
        subject.share.push_back(bound / us);
      }
    }
    return {};
  }

  void print() const {
    std::printf("# %s, %s, batch %zu x %zu, width %zu: copies %.0f GB/s, products %.0f Tflop/s\n",
                device_.name().c_str(), o_.dtype.c_str(), o_.batch, o_.context, o_.width,
                copy_rate(), product_rate());
    std::printf("# %-34s %10s %10s %10s %8s\n", "layer", "us", "GB/s", "Tflop/s", "of bound");
    for (const LayerSubject& s : subjects_) {
      const double us = median_of(s.us);
      std::printf("  %-34s %10.1f %10.1f %10.1f %8.3f\n", s.name.c_str(), us, s.bytes / us * 1e-3,
                  s.operations / us * 1e-6, median_of(s.share));
    }
  }

  nlohmann::ordered_json document() const {
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (const LayerSubject& s : subjects_) {
      results.push_back({{"layer", s.name},
                         {"us", median_of(s.us)},
                         {"bytes", s.bytes},
                         {"operations", s.operations},
                         {"of_bound", median_of(s.share)}});
    }
    return {{"device", device_.name()},
            {"dtype", o_.dtype},
            {"batch", o_.batch},
            {"context", o_.context},
            {"width", o_.width},
            {"heads", o_.heads},
            {"vocabulary", o_.vocabulary},
            {"copy_gb_per_s", copy_rate()},
            {"product_tflops", product_rate()},
            {"results", results}};
  }

 private:
  static constexpr int kBatch = 5;  // runs between two events

  double copy_rate() const { return copy_.bytes / median_of(copy_us_) * 1e-3; }
  double product_rate() const { return product_.operations / median_of(product_us_) * 1e-6; }

  Result<double> time_of(const LayerSubject& subject) {
    auto& cuda = device_.cuda();
    subject.run();  // the first one may load code
    RONDO_TRY(cuda.record(begin_, device_.stream()));
    for (int i = 0; i < kBatch; ++i) subject.run();
    RONDO_TRY(cuda.record(end_, device_.stream()));
    RONDO_TRY(device_.wait());
    return double{RONDO_TRY(cuda.elapsed_ms(begin_, end_))} * 1e3 / kBatch;
  }

  void add(const char* name, double elements, double operations, std::function<void()> run) {
    subjects_.push_back({name, elements * sizeof(T), operations, std::move(run)});
  }

  /// A linear layer's three products.
  void add_linear(const char* name, const LinearShape& shape, const T* x, const T* w, T* y) {
    const auto rows = static_cast<double>(shape.rows), in = static_cast<double>(shape.in),
               out = static_cast<double>(shape.out);
    const double operations = 2 * rows * in * out, elements = rows * in + rows * out + in * out;
    add((std::string(name) + ", forward").c_str(), elements, operations,
        [=, this] { layers_.multiply_forward(shape, x, w, y); });
    add((std::string(name) + ", input").c_str(), elements, operations,
        [=, this] { layers_.multiply_input_gradient(shape, y, w, const_cast<T*>(x)); });
    add((std::string(name) + ", weight").c_str(), elements, operations, [=, this] {
      layers_.multiply_weight_gradient(shape, {.first = 0, .count = shape.out}, y, x,
                                       const_cast<T*>(w), false);
    });
  }

  void describe() {
    const size_t rows = o_.rows(), width = o_.width;
    const auto n = static_cast<double>(rows * width);
    const auto vocabulary = static_cast<double>(rows * o_.vocabulary);
    T *const a = narrow_.data(), *const b = other_.data(), *const c = more_.data();
    T *const wide = wide_.data(), *const wider = wider_.data(), *const v = vector_.data();
    copy_ = {"copy", 8 * n * sizeof(T), 0,
             [=, this] { layers_.copy(4 * rows * width, wide, wider); }};
    const LinearShape large{.rows = rows, .in = width, .out = 4 * width};
    product_ = {"product", 0, 8 * n * static_cast<double>(width),
                [=, this] { layers_.multiply_forward(large, a, weight_.data(), wide); }};
    const Inputs<T> in = layers_.take(batch(), true, 1);
    add("embedding", 3 * n, 0, [=, this] {
      layers_.embedding_forward({.symbols = rows,
                                 .size = width,
                                 .context = o_.context,
                                 .x = in.tokens,
                                 .table = table_.data(),
                                 .positions = nullptr,
                                 .dropout = {},
                                 .y = a});
    });
    add("embedding, backward", 3 * n, 0,
        [=, this] { layers_.embedding_backward(rows, width, in, a, table_.data()); });
    add("layer norm", 5 * n, 0, [=, this] {
      layers_.layer_norm_forward({.rows = rows,
                                  .width = width,
                                  .delta = b,
                                  .bias = v,
                                  .gamma = v,
                                  .beta = v,
                                  .x = a,
                                  .normal = c,
                                  .reciprocal = per_row_.data(),
                                  .y = wide});
    });
    add("layer norm, backward", 6 * n, 0, [=, this] {
      layers_.layer_norm_backward({.rows = rows,
                                   .width = width,
                                   .normal = c,
                                   .reciprocal = per_row_.data(),
                                   .gamma = v,
                                   .dy = b,
                                   .dgamma = v,
                                   .dbeta = v + width,
                                   .dx = a},
                                  false);
    });
    add("GELU", 12 * n, 0, [=, this] { layers_.gelu_forward(rows, 4 * width, v, wide, wider); });
    add("GELU, backward", 12 * n, 0, [=, this] {
      layers_.gelu_backward({.rows = rows, .in = 0, .out = 4 * width}, wide, wider, false, v);
    });
    add("bias, backward", n, 0, [=, this] {
      layers_.linear_backward_bias({.rows = rows, .in = 0, .out = width}, a, false, v);
    });
    add_linear("c_attn", {.rows = rows, .in = width, .out = 3 * width}, a, weight_.data(), wide);
    add_linear("c_fc", {.rows = rows, .in = width, .out = 4 * width}, a, weight_.data(), wide);
    add_linear("mlp.c_proj", {.rows = rows, .in = 4 * width, .out = width}, wide, weight_.data(),
               a);
    const LogitsShape logits{
        .rows = rows, .classes = o_.vocabulary, .stride = layers_.row_stride(o_.vocabulary)};
    add_linear("head", {.rows = rows, .in = width, .out = logits.classes, .stride = logits.stride},
               a, table_.data(), logits_.data());
    const AttentionShape shape{
        .samples = o_.batch, .context = o_.context, .heads = o_.heads, .width = width};
    // Half of the products' blocks are masked.
    const double pairs = static_cast<double>(o_.context) * n;
    const Attention<T, cuda::Wide<T>> pass{.shape = shape,
                                           .dropout = {},
                                           .qkv = wide,
                                           .kept = per_row_.data(),
                                           .scratch = nullptr,
                                           .y = a};
    add("attention", 4 * n, 2 * pairs, [=, this] { layers_.attention_forward(pass); });
    add("attention, backward", 8 * n, 5 * pairs,
        [=, this] { layers_.attention_backward(pass, b, wider); });
    add("cross-entropy and its gradient", 2 * vocabulary, 0, [=, this] {
      layers_.softmax_cross_entropy_forward(logits, in.targets, true, logits_.data(), loss_.data());
    });
    add("cross-entropy, backward, scaled", 2 * vocabulary, 0, [=, this] {  // by 1 it does nothing
      layers_.softmax_cross_entropy_backward(logits, in.targets, 0.5, logits_.data());
    });
    const size_t weights = 4 * width * width;
    float* const state = states_.data();
    subjects_.push_back(
        {"AdamW", static_cast<double>(weights) * (3 * sizeof(T) + 6 * sizeof(float)), 0, [=, this] {
           cuda::launch(device_, "AdamW",
                        cuda::AdamWKernel<T>{factors_.data(), true, 0.1f, 0.999f, 0.001f, 1e-8f,
                                             weights, weight_.data(), state, state + weights,
                                             state + 2 * weights, weight_.data()});
         }});
  }

  Batch batch() const {
    return {.size = o_.batch,
            .tokens = tokens_.data(),
            .images = nullptr,
            .targets = tokens_.data(),
            .ids = ids_.data()};
  }

  Device& device_;
  cuda::LayersOnDevice<T> layers_;
  const BenchOptions o_;
  DeviceArray<T> logits_, narrow_, other_, more_, wide_, wider_, table_, weight_, vector_;
  DeviceArray<cuda::Wide<T>> per_row_;
  DeviceArray<float> states_;
  DeviceArray<cuda::UpdateFactors<float>> factors_;
  DeviceArray<double> loss_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> ids_;
  LayerSubject copy_, product_;
  std::vector<LayerSubject> subjects_;
  std::vector<double> copy_us_, product_us_;
  Device::Event begin_ = nullptr, end_ = nullptr;
};

template <class T>
Status run_bench(const BenchOptions& options) {
  const auto device = RONDO_TRY(Device::open(0));
  auto products = RONDO_TRY(cuda::open_products(*device));
  LayersBench<T> bench(*device, std::move(products), options);
  RONDO_TRY(device->status());
  RONDO_TRY(bench.measure());
  bench.print();
  if (options.json.empty()) return {};
  std::ofstream file(options.json);
  file << bench.document().dump(1) << "\n";
  file.close();
  return file ? Status() : Status(Code::kSystem, "cannot write " + options.json);
}

}  // namespace
}  // namespace rondo::trainer

int main(int argc, char** argv) {
  using namespace rondo::trainer;
  BenchOptions o;
  CLI::App app("Times the layers of GPT-2 on a GPU, beside their bounds.", "layers_bench_cuda");
  app.option_defaults()->always_capture_default();
  app.add_option("--batch", o.batch, "Samples")->check(CLI::Range(1, 1 << 16));
  app.add_option("--context", o.context, "Tokens of a sample")->check(CLI::Range(1, 1 << 20));
  app.add_option("--width", o.width, "Of the residual stream")->check(CLI::Range(1, 1 << 16));
  app.add_option("--heads", o.heads, "Of attention")->check(CLI::Range(1, 1024));
  app.add_option("--vocabulary", o.vocabulary, "Symbols")->check(CLI::Range(1, 1 << 24));
  app.add_option("--dtype", o.dtype, "Of activations and weights")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--rounds", o.rounds, "The median counts")->check(CLI::Range(1, 1000));
  app.add_option("--json", o.json, "File for the results");
  CLI11_PARSE(app, argc, argv);
  if (o.width % o.heads != 0) {
    std::fputs("layers_bench_cuda: --width is not a multiple of --heads\n", stderr);
    return 2;
  }
  const rondo::Status status =
      o.dtype == "bf16" ? run_bench<cuda::BFloat16Bits>(o) : run_bench<float>(o);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "layers_bench_cuda: %s\n", status.to_string().c_str());
  return EXIT_FAILURE;
}
