// What the tests of the convolutional network share: a network with its own storage, samples, and
// what backward says.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "trainer/base/random.hpp"
#include "trainer/models/cnn.hpp"

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
  void gradient_skipped(int) override { events.push_back("skipped"); }
  const std::vector<std::string>& layers_;
  const std::vector<Parameter>& parameters_;
  std::vector<std::string> events;
  std::vector<int> order;
};

inline CnnShape small(size_t batch) {
  return {.layers = 2,
          .width = 2,
          .channels = 2,
          .height = 6,
          .width_pixels = 7,
          .classes = 3,
          .batch = batch};
}

/// A network with storage of its own for each tensor.
template <class T>
struct Rig {
  explicit Rig(const CnnShape& shape, SumOverRanks sum = nullptr)
      : model(make_cnn<T>(shape, std::move(sum))), listener(model->layers(), model->parameters()) {
    values = storage(model->parameters());
    gradients = storage(model->parameters());
    buffers = storage(model->buffers());
    for (size_t p = 0; p < values.size(); ++p) {
      initialise(model->parameters()[p], static_cast<int>(p), 1, values[p].data());
      // What starts at 0 or 1 should matter here.
      for (size_t i = 0; i < values[p].size(); ++i) {
        values[p][i] += static_cast<T>(0.1f * static_cast<float>(symmetric_unit(p * 977 + i)));
      }
      std::fill(gradients[p].begin(), gradients[p].end(), T{77});
    }
    for (size_t b = 0; b < buffers.size(); ++b) {
      initialise(model->buffers()[b], 0, 1, buffers[b].data());
    }
    model->bind(places(values), places(gradients), places(buffers));
  }

  static std::vector<std::vector<T>> storage(const std::vector<Parameter>& tensors) {
    std::vector<std::vector<T>> all;
    for (const Parameter& tensor : tensors) all.emplace_back(tensor.count());
    return all;
  }
  static std::vector<T*> places(std::vector<std::vector<T>>& tensors) {
    std::vector<T*> all;
    for (auto& tensor : tensors) all.push_back(tensor.data());
    return all;
  }

  double loss(const Batch& batch, const Pass& pass = kTraining) {
    double loss = 0;
    RONDO_CHECK(model->forward(batch, pass, &loss).ok());
    return loss;
  }
  double train(const Batch& batch, double scale = 1, bool accumulate = false) {
    const double sum = loss(batch);
    RONDO_CHECK(model->backward(batch, kTraining, scale, accumulate, listener).ok());
    return sum;
  }

  std::unique_ptr<Model<T>> model;
  Listener listener;
  std::vector<std::vector<T>> values, gradients, buffers;
};

/// Samples, and shares of them.
struct Samples {
  Samples(const CnnShape& shape, size_t samples)
      : size(shape.channels * shape.height * shape.width_pixels),
        images(samples * size),
        targets(samples) {
    for (size_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<float>(0.5 + 0.5 * symmetric_unit(i + 31));
    }
    for (size_t i = 0; i < samples; ++i) {
      targets[i] = static_cast<int32_t>(mix(i + 5) % shape.classes);
    }
  }
  Batch share(size_t first, size_t count) const {
    return {.size = count,
            .tokens = nullptr,
            .images = count == 0 ? nullptr : images.data() + first * size,
            .targets = count == 0 ? nullptr : targets.data() + first,
            .ids = nullptr};
  }
  Batch all() const { return share(0, targets.size()); }

  size_t size;
  std::vector<float> images;
  std::vector<int32_t> targets;
};

inline double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double v : values) result = std::max(result, std::abs(v));
  return result;
}

/// The largest difference within a tensor, beside the tensor's largest element.
inline double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = std::max(difference, std::abs(a[i] - b[i]));
  return difference / std::max(largest(b), 1e-300);
}

}  // namespace rondo::trainer::testing
