// Runs a model on made-up samples, ten steps of AdamW and an evaluation, and writes everything that
// another implementation needs to do the same and be compared: compare_with_torch.py. The optimizer
// is written here, by PyTorch's formula, so that a difference is the model's.
//
//   model_dump float|double mlp OUT LAYERS WIDTH BATCH
//   model_dump float|double gpt OUT LAYERS WIDTH BATCH HEADS CONTEXT VOCABULARY SPLIT_TIED
//   model_dump float|double cnn OUT LAYERS WIDTH BATCH CHANNELS HEIGHT PIXELS BATCH_NORM AVERAGE
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/trainer/model_storage.hpp"
#include "trainer/models/cnn.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::json;

constexpr int kSteps = 10;
constexpr double kRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8, kDecay = 0.01;
using namespace testing;  // NOLINT: the trainer's tests'

/// What a model is run on: `context` symbols out of its classes in a sample, or `pixels` numbers.
struct Task {
  Json shape;
  size_t batch, context, pixels;
};

template <class T>
class Run : ModelRig<T> {
 public:
  Run(std::unique_ptr<Model<T>> made, const Task& task)
      : ModelRig<T>(std::move(made)), task_(task) {
    for (size_t p = 0; p < values.size(); ++p) {
      const Parameter& parameter = this->parameter(p);
      first_moments_.emplace_back(parameter.count());
      second_moments_.emplace_back(parameter.count());
      // Matrices start as in training: larger ones would make rounding errors of ten steps larger.
      if (parameter.shape.size() == 1) continue;
      initialise(parameter, static_cast<int>(p), 1, values[p].data());
    }
    for (size_t i = 0; i < task.batch * task.context; ++i) {
      tokens_.push_back(static_cast<int32_t>(mix(i) % model->classes()));
    }
    for (size_t i = 0; i < task.batch * task.pixels; ++i) {
      images_.push_back(static_cast<float>(mix(i) % 256) / 256);
    }
    for (size_t i = 0; i < task.batch * model->loss_terms(); ++i) {
      targets_.push_back(static_cast<int32_t>(mix(~i) % model->classes()));
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
    json["parameters"] = tensors(values);
    std::vector<double> losses;
    for (int step = 1; step <= kSteps; ++step) {
      losses.push_back(pass());
      if (step == 1) {
        json["probabilities"] = probabilities_;
        json["gradients"] = tensors(gradients);
      }
      for (size_t p = 0; p < values.size(); ++p) update(p, step);
    }
    losses.push_back(pass());
    json["losses"] = losses;  // means: before each step and after the last
    json["after"] = tensors(values);
    json["buffers"] = Json::array();
    for (size_t b = 0; b < buffers.size(); ++b) {
      json["buffers"].push_back({{"name", model->buffers()[b].name},
                                 {"shape", model->buffers()[b].shape},
                                 {"values", buffers[b]}});
    }
    const double evaluated = forward(kEvaluation);
    json["evaluation"] = {{"loss", evaluated}, {"probabilities", probabilities_}};
    return json;
  }

 private:
  using ModelRig<T>::model, ModelRig<T>::values, ModelRig<T>::gradients, ModelRig<T>::buffers;

  Batch batch() const {
    return {.size = task_.batch,
            .tokens = tokens_.data(),
            .images = images_.data(),
            .targets = targets_.data(),
            .ids = ids_.data()};
  }
  double terms() const { return static_cast<double>(targets_.size()); }

  /// The mean loss. Backward overwrites the probabilities.
  double forward(const Pass& pass) {
    const double loss = this->loss(batch(), pass) / terms();
    const T* const first = model->probabilities();
    probabilities_.assign(first, first + targets_.size() * model->classes());
    return loss;
  }

  /// The mean loss; gradients of it, with shares added to what they belong to.
  double pass() {
    const double loss = forward(kTraining);
    const Status status = model->backward(batch(), kTraining, 1 / terms(), false, this->listener);
    if (!status.ok()) std::abort();
    for (size_t p = 0; p < values.size(); ++p) {
      const std::vector<T> sum = this->gradient(p);
      std::copy(sum.begin(), sum.end(), gradients[p].begin());  // where it is bound
    }
    return loss;
  }

  /// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW does it.
  void update(size_t p, int step) {
    const double correction1 = 1 - std::pow(kBeta1, step), correction2 = 1 - std::pow(kBeta2, step);
    const double decay = this->parameter(p).decays ? kDecay : 0;
    for (size_t i = 0; i < values[p].size(); ++i) {
      const T g = gradients[p][i];
      T& m = first_moments_[p][i];
      T& v = second_moments_[p][i];
      T& value = values[p][i];
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
      const Parameter& parameter = this->parameter(p);
      if (parameter.adds_to >= 0) continue;
      json.push_back({{"name", parameter.name},
                      {"shape", parameter.shape},
                      {"decays", parameter.decays},
                      {"values", numbers[p]}});
    }
    return json;
  }

  const Task task_;
  std::vector<std::vector<T>> first_moments_, second_moments_;
  std::vector<int32_t> tokens_, targets_;
  std::vector<T> probabilities_;
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
