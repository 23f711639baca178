// A model with storage of its own for each tensor, and what its backward says.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/base/random.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer::testing {

inline constexpr Pass kTraining{.training = true, .seed = 1, .step = 0};
inline constexpr Pass kEvaluation{.training = false, .seed = 1, .step = 0};

/// Everything that backward says, in order: "layer name" and "parameter name".
struct Listener : BackwardListener {
  explicit Listener(const std::vector<std::string>& layers,
                    const std::vector<Parameter>& parameters)
      : layers_(layers), parameters_(parameters) {}
  void layer_begins(int layer) override {
    events.push_back("layer " + layers_[static_cast<size_t>(layer)]);
  }
  void gradient_ready(int parameter, size_t count) override {
    const Parameter& ready = parameters_[static_cast<size_t>(parameter)];
    events.push_back(ready.name + (count == ready.count() ? "" : " in part"));
    order.push_back(parameter);
  }
  void gradient_skipped(int parameter) override { skipped.insert(parameter); }
  void clear() { events.clear(), order.clear(), skipped.clear(); }

  const std::vector<std::string>& layers_;
  const std::vector<Parameter>& parameters_;
  std::vector<std::string> events;
  std::vector<int> order;
  std::set<int> skipped;
};

/// A model with storage of its own for each tensor.
template <class T>
struct ModelRig {
  explicit ModelRig(std::unique_ptr<Model<T>> made)
      : model(std::move(made)), listener(model->layers(), model->parameters()) {
    std::vector<T*> value_places, gradient_places, buffer_places;
    for (const Parameter& parameter : model->parameters()) {
      const size_t p = values.size();
      values.emplace_back(parameter.count());
      gradients.emplace_back(parameter.count(), T{77});
      initialise(parameter, static_cast<int>(p), 1, values[p].data());
      // What starts at 0 or 1 should matter here.
      for (size_t i = 0; i < values[p].size(); ++i) {
        values[p][i] += static_cast<T>(0.1f * static_cast<float>(symmetric_unit(p * 977 + i)));
      }
    }
    for (size_t p = 0; p < values.size(); ++p) {
      value_places.push_back(parameter(p).adds_to >= 0 ? nullptr : values[p].data());
      gradient_places.push_back(gradients[p].data());
    }
    for (const Parameter& buffer : model->buffers()) {
      buffers.emplace_back(buffer.count());
      initialise(buffer, 0, 1, buffers.back().data());
    }
    for (auto& buffer : buffers) buffer_places.push_back(buffer.data());
    model->bind(value_places, gradient_places, buffer_places);
  }

  const Parameter& parameter(size_t p) const { return model->parameters()[p]; }
  size_t parameter_count() const {
    size_t count = 0;
    for (const Parameter& parameter : model->parameters()) {
      if (parameter.adds_to < 0) count += parameter.count();
    }
    return count;
  }

  double loss(const Batch& batch, const Pass& pass = kTraining) {
    double loss = 0;
    RONDO_CHECK(model->forward(batch, pass, &loss).ok());
    return loss;
  }
  double train(const Batch& batch, double scale = 1, bool accumulate = false,
               const Pass& pass = kTraining) {
    listener.clear();
    const double sum = loss(batch, pass);
    RONDO_CHECK(model->backward(batch, pass, scale, accumulate, listener).ok());
    return sum;
  }
  /// The gradient of a parameter, with what adds to it.
  std::vector<T> gradient(size_t p) const {
    std::vector<T> sum = gradients[p];
    for (size_t other = 0; other < values.size(); ++other) {
      if (parameter(other).adds_to != static_cast<int>(p)) continue;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradients[other][i];
    }
    return sum;
  }

  std::unique_ptr<Model<T>> model;
  Listener listener;
  std::vector<std::vector<T>> values, gradients, buffers;
};

}  // namespace rondo::trainer::testing
