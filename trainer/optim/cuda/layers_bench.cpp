// How long the layers of GPT-2 take on a GPU, each beside its bound: the bytes that it must move at
// the rate of the device's copy, or the operations of its products at a large product's rate, both
// measured in the same rounds; and what they make of a step. Also two convolutions, of which a step
// has none. Products, convolutions and attention get random numbers, since a GPU multiplies zeros
// faster. Not a test: nothing is checked.
//
//     layers_bench_cuda [--layers N] [--batch N] [--context N] [--width N] [--heads N] [--vocabulary N]
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
  size_t layers = 12, batch = 16, context = 1024, width = 768, heads = 12, vocabulary = 50257;
  int rounds = 11;
  std::string dtype = "bf16", json;

  size_t rows() const { return batch * context; }
  double parameters() const {
    const auto w = static_cast<double>(width);
    return static_cast<double>(vocabulary + context) * w +
           static_cast<double>(layers) * (12 * w * w + 13 * w) + 2 * w;
  }
};

/// What a layer must at least move and compute; `run` enqueues it once.
struct LayerSubject {
  std::string name;
  double per_step;           // how often a step does that
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
    for (auto* each : {&narrow_, &other_, &more_, &third_}) layers_.allocate(*each, rows * width);
    for (auto* each : {&wide_, &wider_, &widest_}) layers_.allocate(*each, rows * 4 * width);
    for (auto* each : {&table_, &table_out_}) layers_.allocate(*each, o_.vocabulary * width);
    for (auto* each : {&weight_, &weight_out_, &updated_})
      layers_.allocate(*each, 4 * width * width);
    for (auto* each : {&vector_, &vector_out_}) layers_.allocate(*each, 4 * width);
    for (auto* each : {&narrow_, &wide_, &vector_}) fill(*each, 1);
    for (auto* each : {&table_, &weight_}) fill(*each, 0.05);
    layers_.allocate(decays_, 4 * width * width / cuda::DecayMap::kUnit + 1);
    layers_.allocate(
        per_row_,
        layers_.attention_kept(
            {.samples = o_.batch, .context = o_.context, .heads = o_.heads, .width = width}));
    layers_.allocate(states_, 3 * 4 * width * width);
    layers_.allocate(factors_, 1);
    const cuda::UpdateFactors<float> factors{.coefficient = 1,
                                             .rate = 1e-3f,
                                             .keep = 1,
                                             .second_correction_root = 1,
                                             .step_size = 1e-3f};
    device_.copy(factors_.data(), &factors, sizeof factors);
    device_.note(device_.wait());  // before `factors` goes
    layers_.allocate(loss_, 1);
    for (const ConvolutionShape& shape : kConvolutions) layers_.convolution_scratch(shape);
    for (auto* each : {&images_, &images_dy_, &images_out_}) layers_.allocate(*each, kImages);
    for (auto* each : {&filters_, &filters_out_}) layers_.allocate(*each, kFilters);
    for (auto* each : {&images_, &images_dy_}) fill(*each, 1);
    fill(filters_, 0.05);
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

  /// Milliseconds of the layers of a step, alone.
  double step_ms() const {
    double us = 0;
    for (const LayerSubject& s : subjects_) us += s.per_step * median_of(s.us);
    return us * 1e-3;
  }

  void print() const {
    std::printf("# %s, %s, batch %zu x %zu, width %zu: copies %.0f GB/s, products %.0f Tflop/s\n",
                device_.name().c_str(), o_.dtype.c_str(), o_.batch, o_.context, o_.width,
                copy_rate(), product_rate());
    std::printf("# %-42s %10s %10s %10s %8s\n", "layer", "us", "GB/s", "Tflop/s", "of bound");
    for (const LayerSubject& s : subjects_) {
      const double us = median_of(s.us);
      std::printf("  %-42s %10.1f %10.1f %10.1f %8.3f\n", s.name.c_str(), us, s.bytes / us * 1e-3,
                  s.operations / us * 1e-6, median_of(s.share));
    }
    std::printf("# a step of %zu layers: %.2f ms of them, %.0f tokens/s\n", o_.layers, step_ms(),
                static_cast<double>(o_.rows()) / step_ms() * 1e3);
  }

  nlohmann::ordered_json document() const {
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (const LayerSubject& s : subjects_) {
      results.push_back({{"layer", s.name},
                         {"per_step", s.per_step},
                         {"us", median_of(s.us)},
                         {"bytes", s.bytes},
                         {"operations", s.operations},
                         {"of_bound", median_of(s.share)}});
    }
    return {{"device", device_.name()},
            {"dtype", o_.dtype},
            {"layers", o_.layers},
            {"batch", o_.batch},
            {"context", o_.context},
            {"width", o_.width},
            {"heads", o_.heads},
            {"vocabulary", o_.vocabulary},
            {"copy_gb_per_s", copy_rate()},
            {"product_tflops", product_rate()},
            {"step_ms", step_ms()},
            {"results", results}};
  }

 private:
  static constexpr int kBatch = 5;  // runs between two events
  static constexpr ConvolutionShape kConvolutions[] = {
      {.samples = 64,
       .in_channels = 64,
       .height = 56,
       .width = 56,
       .out_channels = 64,
       .kernel = 3,
       .padding = 1},
      {.samples = 1024,  // the second one of rondo-train's network
       .in_channels = 16,
       .height = 14,
       .width = 14,
       .out_channels = 32,
       .kernel = 3,
       .padding = 1}};
  // What the larger one has.
  static constexpr size_t kImages = size_t{64} * 64 * 56 * 56, kFilters = size_t{64} * 64 * 9;

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

  /// The same million numbers again and again, between -size and size.
  void fill(DeviceArray<T>& values, double size) {
    std::vector<T> some(1'000'003);
    for (size_t i = 0; i < some.size(); ++i) {
      some[i] = cuda::narrow<T>(static_cast<cuda::Wide<T>>(size * symmetric_unit(i)));
    }
    for (size_t at = 0; at < values.count(); at += some.size()) {
      device_.copy(values.data() + at, some.data(),
                   std::min(some.size(), values.count() - at) * sizeof(T));
    }
    device_.note(device_.wait());  // before `some` goes
  }

  void add(const std::string& name, double per_step, double elements, double operations,
           std::function<void()> run) {
    subjects_.push_back({name, per_step, elements * sizeof(T), operations, std::move(run)});
  }

  /// A linear layer's three products: what they read, and where they write.
  struct LinearMemory {
    const T *x, *w, *dy;
    T *y, *dx, *dw;
  };
  void add_linear(const std::string& name, double per_step, const LinearShape& shape,
                  const LinearMemory& at) {
    const auto rows = static_cast<double>(shape.rows), in = static_cast<double>(shape.in),
               out = static_cast<double>(shape.out);
    const double operations = 2 * rows * in * out, elements = rows * in + rows * out + in * out;
    add(name + ", forward", per_step, elements, operations,
        [=, this] { layers_.multiply_forward(shape, at.x, at.w, at.y); });
    add(name + ", input", per_step, elements, operations,
        [=, this] { layers_.multiply_input_gradient(shape, at.dy, at.w, at.dx); });
    add(name + ", weight", per_step, elements, operations, [=, this] {
      layers_.multiply_weight_gradient(shape, {.first = 0, .count = shape.out}, at.dy, at.x, at.dw,
                                       false);
    });
  }

  void add_convolution(const ConvolutionShape& shape) {
    const auto weights = static_cast<double>(shape.out_channels * shape.patch());
    const auto pixels = static_cast<double>(shape.samples * shape.out_pixels());
    const double operations = 2 * weights * pixels;
    const double elements =
        static_cast<double>(shape.samples * (shape.in_size() + shape.out_size())) + weights;
    const std::string name = "convolution, " + std::to_string(shape.in_channels) + " to " +
                             std::to_string(shape.out_channels) + " channels, ";
    add(name + "forward", 0, elements, operations, [=, this] {
      layers_.convolution_forward(shape, images_.data(), filters_.data(), nullptr, false, nullptr,
                                  images_out_.data());
    });
    add(name + "input", 0, elements, operations, [=, this] {
      layers_.convolution_backward_input(shape, images_dy_.data(), filters_.data(), nullptr,
                                         images_out_.data());
    });
    add(name + "weight", 0, elements, operations, [=, this] {
      layers_.convolution_backward_weight(shape, images_dy_.data(), images_.data(), nullptr, false,
                                          filters_out_.data());
    });
  }

  void describe() {
    const size_t rows = o_.rows(), width = o_.width;
    const auto n = static_cast<double>(rows * width), layers = static_cast<double>(o_.layers);
    const double norms = 2 * layers + 1;
    const auto vocabulary = static_cast<double>(rows * o_.vocabulary);
    const T *const narrow = narrow_.data(), *const wide = wide_.data(), *const v = vector_.data();
    const T* const weight = weight_.data();
    T *const other = other_.data(), *const more = more_.data(), *const third = third_.data();
    T *const wider = wider_.data(), *const widest = widest_.data();
    T *const weight_out = weight_out_.data(), *const vector_out = vector_out_.data();
    copy_ = {"copy", 0, 8 * n * sizeof(T), 0,
             [=, this] { layers_.copy(4 * rows * width, wide, wider); }};
    const LinearShape large{.rows = rows, .in = width, .out = 4 * width};
    product_ = {"product", 0, 0, 8 * n * static_cast<double>(width),
                [=, this] { layers_.multiply_forward(large, narrow, weight, wider); }};
    const Inputs<T> in = layers_.take(batch(), true, 1);
    add("embedding", 1, 3 * n, 0, [=, this] {
      layers_.embedding_forward({.symbols = rows,
                                 .size = width,
                                 .context = o_.context,
                                 .x = in.tokens,
                                 .table = table_.data(),
                                 .positions = nullptr,
                                 .dropout = {},
                                 .y = other});
    });
    add("embedding, backward", 1, 3 * n, 0,
        [=, this] { layers_.embedding_backward(rows, width, in, narrow, table_out_.data()); });
    add("layer norm", norms, 5 * n, 0, [=, this] {
      layers_.layer_norm_forward({.rows = rows,
                                  .width = width,
                                  .delta = narrow,
                                  .bias = v,
                                  .gamma = v,
                                  .beta = v,
                                  .x = other,
                                  .normal = more,
                                  .reciprocal = per_row_.data(),
                                  .y = third});
    });
    add("layer norm, backward", norms, 4 * n, 0, [=, this] {
      layers_.layer_norm_backward({.rows = rows,
                                   .width = width,
                                   .normal = more,
                                   .reciprocal = per_row_.data(),
                                   .gamma = v,
                                   .dy = narrow,
                                   .dgamma = vector_out,
                                   .dbeta = vector_out + width,
                                   .dx = other},
                                  false);
    });
    add("GELU", layers, 12 * n, 0,
        [=, this] { layers_.gelu_forward(rows, 4 * width, v, wider, widest); });
    add("GELU, backward", layers, 12 * n, 0, [=, this] {
      layers_.gelu_backward({.rows = rows, .in = 0, .out = 4 * width}, wide, wider, false,
                            vector_out);
    });
    const auto add_bias = [&](const char* name, double per_step, size_t out, const T* dy) {
      add(name, per_step, static_cast<double>(rows * out), 0, [=, this] {
        layers_.linear_backward_bias({.rows = rows, .in = 0, .out = out}, dy, false, vector_out);
      });
    };
    add_bias("bias, backward", 2 * layers, width, narrow);
    add_bias("c_attn's bias, backward", layers, 3 * width, wide);
    const LinearMemory widens{narrow, weight, wide, wider, other, weight_out};
    add_linear("c_attn", layers, {.rows = rows, .in = width, .out = 3 * width}, widens);
    add_linear("c_proj", layers, {.rows = rows, .in = width, .out = width},
               {narrow, weight, more, other, third, weight_out});
    add_linear("c_fc", layers, large, widens);
    add_linear("mlp.c_proj", layers, {.rows = rows, .in = 4 * width, .out = width},
               {wide, weight, narrow, other, wider, weight_out});
    const LogitsShape logits{
        .rows = rows, .classes = o_.vocabulary, .stride = layers_.row_stride(o_.vocabulary)};
    add_linear("head", 1,
               {.rows = rows, .in = width, .out = logits.classes, .stride = logits.stride},
               {narrow, table_.data(), logits_.data(), logits_.data(), other, table_out_.data()});
    const AttentionShape shape{
        .samples = o_.batch, .context = o_.context, .heads = o_.heads, .width = width};
    // Half of the products' blocks are masked.
    const double pairs = static_cast<double>(o_.context) * n;
    const Attention<T, cuda::Wide<T>> pass{.shape = shape,
                                           .dropout = {},
                                           .qkv = wide_.data(),
                                           .kept = per_row_.data(),
                                           .scratch = nullptr,
                                           .y = other};
    add("attention", layers, 4 * n, 2 * pairs, [=, this] { layers_.attention_forward(pass); });
    add("attention, backward", layers, 8 * n, 5 * pairs,
        [=, this] { layers_.attention_backward(pass, narrow, wider); });
    add("cross-entropy and its gradient", 1, 2 * vocabulary, 0, [=, this] {
      layers_.softmax_cross_entropy_forward(logits, in.targets, true, logits_.data(), loss_.data());
    });
    add("cross-entropy, backward, scaled", 0, 2 * vocabulary, 0, [=, this] {  // by 1: nothing
      layers_.softmax_cross_entropy_backward(logits, in.targets, 0.5, logits_.data());
    });
    for (const ConvolutionShape& convolution : kConvolutions) add_convolution(convolution);
    const size_t weights = 4 * width * width;
    float* const state = states_.data();
    subjects_.push_back({"AdamW", o_.parameters() / static_cast<double>(weights),
                         static_cast<double>(weights) * (3 * sizeof(T) + 6 * sizeof(float)), 0,
                         [=, this] {
                           cuda::launch(device_, "AdamW",
                                        cuda::AdamWKernel<T>{factors_.data(),
                                                             {decays_.data()},
                                                             0.1f,
                                                             0.999f,
                                                             0.001f,
                                                             1e-8f,
                                                             weights,
                                                             weight_out,
                                                             state,
                                                             state + weights,
                                                             state + 2 * weights,
                                                             weight_out});
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
  // Read only; the others are written.
  DeviceArray<T> narrow_, wide_, table_, weight_, vector_;
  DeviceArray<T> logits_, other_, more_, third_, wider_, widest_, table_out_, weight_out_, updated_,
      vector_out_;
  DeviceArray<T> images_, images_dy_, images_out_, filters_, filters_out_;  // of convolutions
  DeviceArray<uint8_t> decays_;
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
  app.add_option("--layers", o.layers, "Blocks, for the step")->check(CLI::Range(1, 1 << 16));
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
