// Runs a model on made-up samples, ten steps of AdamW and an evaluation, and writes everything that
// another implementation needs to do the same and be compared: compare_with_torch.py. The optimizer
// is written here, by PyTorch's formula, so that a difference is the model's.
//
//   model_dump float|double mlp OUT LAYERS WIDTH BATCH
//   model_dump float|double gpt OUT LAYERS WIDTH BATCH HEADS CONTEXT VOCABULARY SPLIT_TIED
//   model_dump float|double cnn OUT LAYERS WIDTH BATCH CHANNELS HEIGHT PIXELS BATCH_NORM AVERAGE
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trainer/base/random.hpp"
#include "trainer/models/cnn.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::json;

constexpr int kSteps = 10;
constexpr double kRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8, kDecay = 0.01;
constexpr Pass kPass{.training = true, .seed = 1, .step = 0};
constexpr Pass kEvaluation{.training = false, .seed = 1, .step = 0};

struct Silent : BackwardListener {
  void layer_begins(int) override {}
  void gradient_ready(int, size_t) override {}
  void gradient_skipped(int) override {}
};

/// What a model is run on: `context` symbols out of its classes in a sample, or `pixels` numbers.
struct Task {
  Json shape;
  size_t batch, context, pixels;
};

template <class T>
class Run {
 public:
  Run(std::unique_ptr<Model<T>> model, const Task& task) : model_(std::move(model)), task_(task) {
    std::vector<T*> values, gradients;
    for (const Parameter& parameter : model_->parameters()) {
      const size_t count = parameter.count();
      values_.emplace_back(count);
      gradients_.emplace_back(count);
      first_moments_.emplace_back(count);
      second_moments_.emplace_back(count);
      initialise(parameter, static_cast<int>(values_.size()), 1, values_.back().data());
      // Biases and norms should not start where a mistake in them is invisible.
      const uint64_t key = mix(values_.size());
      for (size_t i = 0; i < count && parameter.shape.size() == 1; ++i) {
        values_.back()[i] += static_cast<T>(0.1 * symmetric_unit(key ^ i));
      }
    }
    for (size_t p = 0; p < values_.size(); ++p) {
      values.push_back(adds_to(p) >= 0 ? nullptr : values_[p].data());
      gradients.push_back(gradients_[p].data());
    }
    std::vector<T*> buffers;
    for (const Parameter& buffer : model_->buffers()) {
      buffers_.emplace_back(buffer.count(), static_cast<T>(buffer.init.value));
    }
    for (auto& buffer : buffers_) buffers.push_back(buffer.data());
    model_->bind(values, gradients, buffers);
    for (size_t i = 0; i < task.batch * task.context; ++i) {
      tokens_.push_back(static_cast<int32_t>(mix(i) % model_->classes()));
    }
    for (size_t i = 0; i < task.batch * task.pixels; ++i) {
      images_.push_back(static_cast<float>(mix(i) % 256) / 256);
    }
    for (size_t i = 0; i < task.batch * model_->loss_terms(); ++i) {
      targets_.push_back(static_cast<int32_t>(mix(~i) % model_->classes()));
    }
    for (size_t i = 0; i < task.batch; ++i) ids_.push_back(i);
  }

  Json dump() {
    Json json = {
        {"shape", task_.shape},
        {"double", sizeof(T) == 8},
        {"batch", task_.batch},
        {"tokens", tokens_},
        {"images", images_},
        {"targets", targets_},
        {"optimizer",
         {{"lr", kRate}, {"betas", {kBeta1, kBeta2}}, {"eps", kEpsilon}, {"decay", kDecay}}}};
    json["parameters"] = tensors(values_);
    std::vector<double> losses;
    for (int step = 1; step <= kSteps; ++step) {
      losses.push_back(pass());
      if (step == 1) {
        json["probabilities"] = probabilities_;
        json["gradients"] = tensors(gradients_);
      }
      for (size_t p = 0; p < values_.size(); ++p) update(p, step);
    }
    losses.push_back(pass());
    json["losses"] = losses;  // means: before each step and after the last
    json["after"] = tensors(values_);
    json["buffers"] = Json::array();
    for (size_t b = 0; b < buffers_.size(); ++b) {
      json["buffers"].push_back({{"name", model_->buffers()[b].name},
                                 {"shape", model_->buffers()[b].shape},
                                 {"values", buffers_[b]}});
    }
    const double evaluated = forward(kEvaluation);
    json["evaluation"] = {{"loss", evaluated}, {"probabilities", probabilities_}};
    return json;
  }

 private:
  int adds_to(size_t p) const { return model_->parameters()[p].adds_to; }

  Batch batch() const {
    return {.size = task_.batch,
            .tokens = tokens_.data(),
            .images = images_.data(),
            .targets = targets_.data(),
            .ids = ids_.data()};
  }
  double terms() const { return static_cast<double>(targets_.size()); }

  /// The mean loss.
  double forward(const Pass& pass) {
    double loss = 0;
    if (!model_->forward(batch(), pass, &loss).ok()) std::abort();
    probabilities_.assign(model_->probabilities(),
                          model_->probabilities() + targets_.size() * model_->classes());
    return loss / terms();
  }

  /// The mean loss; gradients of it, with shares added to what they belong to.
  double pass() {
    Silent listener;
    const double loss = forward(kPass);
    const Status status = model_->backward(batch(), kPass, 1 / terms(), false, listener);
    if (!status.ok()) std::abort();
    for (size_t p = 0; p < values_.size(); ++p) {
      if (adds_to(p) < 0) continue;
      auto& whole = gradients_[static_cast<size_t>(adds_to(p))];
      for (size_t i = 0; i < whole.size(); ++i) whole[i] += gradients_[p][i];
    }
    return loss;
  }

  /// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW does it.
  void update(size_t p, int step) {
    const double correction1 = 1 - std::pow(kBeta1, step), correction2 = 1 - std::pow(kBeta2, step);
    const double decay = model_->parameters()[p].decays ? kDecay : 0;
    for (size_t i = 0; i < values_[p].size(); ++i) {
      const T g = gradients_[p][i];
      T& m = first_moments_[p][i];
      T& v = second_moments_[p][i];
      T& value = values_[p][i];
      value *= static_cast<T>(1 - kRate * decay);
      m = static_cast<T>(kBeta1) * m + static_cast<T>(1 - kBeta1) * g;
      v = static_cast<T>(kBeta2) * v + static_cast<T>(1 - kBeta2) * g * g;
      const T deviation =
          std::sqrt(v) / static_cast<T>(std::sqrt(correction2)) + static_cast<T>(kEpsilon);
      value -= static_cast<T>(kRate / correction1) * m / deviation;
    }
  }

  Json tensors(const std::vector<std::vector<T>>& numbers) const {
    Json json = Json::array();
    for (size_t p = 0; p < numbers.size(); ++p) {
      const Parameter& parameter = model_->parameters()[p];
      if (parameter.adds_to >= 0) continue;
      json.push_back({{"name", parameter.name},
                      {"shape", parameter.shape},
                      {"decays", parameter.decays},
                      {"values", numbers[p]}});
    }
    return json;
  }

  std::unique_ptr<Model<T>> model_;
  const Task task_;
  std::vector<std::vector<T>> values_, gradients_, first_moments_, second_moments_;
  std::vector<std::vector<T>> buffers_;
  std::vector<T> probabilities_;
  std::vector<int32_t> tokens_, targets_;
  std::vector<float> images_;
  std::vector<uint64_t> ids_;
};

template <class T>
Json run(const std::vector<std::string>& words) {
  const auto number = [&](size_t i) { return static_cast<size_t>(std::stoul(words.at(i))); };
  const size_t layers = number(4), width = number(5), batch = number(6);
  if (words[2] == "mlp") {
    const Task task{.shape = {{"model", "mlp"}, {"layers", layers}},
                    .batch = batch,
                    .context = MlpShape::kContext,
                    .pixels = 0};
    return Run<T>(make_mlp<T>({.layers = layers, .width = width, .batch = batch}), task).dump();
  }
  if (words[2] == "cnn") {
    const CnnShape shape{.layers = layers,
                         .width = width,
                         .channels = number(7),
                         .height = number(8),
                         .width_pixels = number(9),
                         .batch = batch,
                         .batch_norm = number(10) != 0,
                         .average = number(11) != 0};
    const Task task{.shape = {{"model", "cnn"},
                              {"image", {shape.channels, shape.height, shape.width_pixels}},
                              {"average", shape.average}},
                    .batch = batch,
                    .context = 0,
                    .pixels = shape.channels * shape.height * shape.width_pixels};
    return Run<T>(make_cnn<T>(shape, nullptr), task).dump();
  }
  const GptShape shape{.layers = layers,
                       .width = width,
                       .heads = number(7),
                       .context = number(8),
                       .vocabulary = number(9),
                       .batch = batch,
                       .split_tied = number(10) != 0};
  const Task task{.shape = {{"model", "gpt"}, {"layers", layers}, {"heads", shape.heads}},
                  .batch = batch,
                  .context = shape.context,
                  .pixels = 0};
  return Run<T>(make_gpt<T>(shape), task).dump();
}

}  // namespace
}  // namespace rondo::trainer

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  const bool gpt = words.size() == 11 && words[2] == "gpt";
  const bool mlp = words.size() == 7 && words[2] == "mlp";
  const bool cnn = words.size() == 12 && words[2] == "cnn";
  if (!gpt && !mlp && !cnn) {
    std::cerr << "model_dump float|double mlp OUT LAYERS WIDTH BATCH\n"
                 "model_dump float|double gpt OUT LAYERS WIDTH BATCH HEADS CONTEXT VOCABULARY "
                 "SPLIT_TIED\n"
                 "model_dump float|double cnn OUT LAYERS WIDTH BATCH CHANNELS HEIGHT PIXELS "
                 "BATCH_NORM AVERAGE\n";
    return 2;
  }
  std::ofstream out(words[3]);
  out << (words[1] == "double" ? rondo::trainer::run<double>(words)
                               : rondo::trainer::run<float>(words));
  return out.flush() ? 0 : 1;
}
