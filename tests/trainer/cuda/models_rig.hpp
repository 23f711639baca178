// A model on a device and, beside it, the same in the host's memory, in double: what both make of
// the same samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/harness/catch.hpp"
#include "trainer/base/random.hpp"
#include "trainer/models/cuda_models.hpp"

namespace rondo::trainer::cuda::testing {

using Values = std::vector<double>;

inline constexpr Pass kTraining{.training = true, .seed = 3, .step = 4};
inline constexpr Pass kEvaluation{.training = false, .seed = 3, .step = 4};

template <class T>
T rounded(double value) {
  return narrow<T>(static_cast<Wide<T>>(value));
}

/// What a gradient may differ by, beside the largest of its tensor.
template <class T>
inline constexpr double kBound = std::is_same_v<T, float>         ? 4e-6
                                 : std::is_same_v<T, Float16Bits> ? 0.006
                                                                  : 0.04;

struct Listener : BackwardListener {
  void layer_begins(int) override {}
  void gradient_ready(int parameter, size_t count) override {
    ready.emplace_back(parameter, count);
  }
  void gradient_skipped(int parameter) override { skipped.insert(parameter); }
  std::vector<std::pair<int, size_t>> ready;
  std::set<int> skipped;
};

/// Samples of any model: tokens and images, targets among `classes`.
struct Samples {
  Samples(size_t samples, size_t context, size_t pixels, size_t terms, size_t classes)
      : sizes{context, pixels, terms} {
    for (size_t i = 0; i < samples * context; ++i) {
      tokens.push_back(static_cast<int32_t>(mix(i) % classes) / 2 * 2);  // some never occur
    }
    for (size_t i = 0; i < samples * pixels; ++i) {
      images.push_back(static_cast<float>(0.5 + 0.5 * symmetric_unit(i + 31)));
    }
    for (size_t i = 0; i < samples * terms; ++i) {
      targets.push_back(static_cast<int32_t>(mix(~i) % classes));
    }
    for (size_t i = 0; i < samples; ++i) ids.push_back(1000 + 7 * i);
  }
  Batch part(size_t first, size_t count) const {
    return {.size = count,
            .tokens = tokens.data() + first * sizes[0],
            .images = images.data() + first * sizes[1],
            .targets = targets.data() + first * sizes[2],
            .ids = ids.data() + first};
  }
  size_t sizes[3];
  std::vector<int32_t> tokens, targets;
  std::vector<float> images;
  std::vector<uint64_t> ids;
};

/// By name and element, and large enough that every parameter matters; rounded to T.
template <class T>
Values start_of(const Parameter& parameter) {
  uint64_t key = 5;
  for (const char c : parameter.name) key = mix(key ^ static_cast<uint64_t>(c));
  const bool matrix = parameter.shape.size() > 1;
  const double size =
      matrix ? std::sqrt(3.0 / static_cast<double>(parameter.count() / parameter.shape[0])) : 0.2;
  Values values(parameter.count());
  for (size_t i = 0; i < values.size(); ++i) {
    const double start = parameter.init.kind == Init::kConstant ? parameter.init.value : 0;
    const T value = rounded<T>(start + size * symmetric_unit(key ^ i));
    values[i] = static_cast<double>(widen(value));
  }
  return values;
}

/// A model in double in the host's memory.
struct OnHost {
  explicit OnHost(std::unique_ptr<Model<double>> made) : model(std::move(made)) {}

  void bind(const std::vector<Values>& start) {
    values = start;
    for (const Parameter& p : model->parameters()) gradients.emplace_back(p.count(), 0.25);
    for (const Parameter& b : model->buffers()) buffers.emplace_back(b.count(), b.init.value);
    model->bind(places(values), places(gradients), places(buffers));
  }
  static std::vector<double*> places(std::vector<Values>& tensors) {
    std::vector<double*> all;
    for (Values& tensor : tensors) all.push_back(tensor.data());
    return all;
  }

  std::unique_ptr<Model<double>> model;
  std::vector<Values> values, gradients, buffers;
};

/// The same model on a device, beside it.
template <class T>
struct OnDevice {
  OnDevice(Device& on, std::unique_ptr<Model<T>> made, OnHost& beside)
      : device(on), model(std::move(made)), host(beside), sums(on, 2) {
    std::vector<Values> start;
    for (const Parameter& p : model->parameters()) start.push_back(start_of<T>(p));
    host.bind(start);
    values = tensors(host.values);
    gradients = tensors(host.gradients);
    buffers = tensors<BufferElement<T>>(host.buffers);
    model->bind(places(values), places(gradients), places(buffers));
    REQUIRE(device.wait().ok());
  }
  ~OnDevice() { (void)device.wait(); }

  template <class Number = T>
  std::vector<DeviceArray<Number>> tensors(const std::vector<Values>& from) {
    std::vector<DeviceArray<Number>> all;
    for (const Values& each : from) {
      std::vector<Number> elements;
      for (const double value : each) elements.push_back(rounded<Number>(value));
      all.emplace_back(device, elements.size());
      device.copy(all.back().data(), elements.data(), all.back().bytes());
      REQUIRE(device.wait().ok());  // before they go
    }
    return all;
  }
  template <class Number>
  static std::vector<Number*> places(std::vector<DeviceArray<Number>>& arrays) {
    std::vector<Number*> all;
    for (DeviceArray<Number>& array : arrays) all.push_back(array.data());
    return all;
  }
  template <class Number>
  std::vector<Number> fetch(const DeviceArray<Number>& array) {
    std::vector<Number> numbers(array.count());
    device.copy(numbers.data(), array.data(), array.bytes());
    REQUIRE(device.wait().ok());
    return numbers;
  }

  /// A step of both, which has the same gradients and buffers, if `pass` trains; else the losses
  /// and hits of both. Adds to their gradients if `accumulate`.
  void step(const Batch& batch, const Pass& pass, double scale = 1, bool accumulate = false) {
    Listener here, there;
    double expected[] = {3, 4};
    REQUIRE(host.model->forward(batch, pass, &expected[0]).ok());
    const double begin[] = {3, 4};
    device.copy(sums.data(), begin, sums.bytes());
    REQUIRE(device.wait().ok());
    REQUIRE(model->forward(batch, pass, sums.data()).ok());
    if (!pass.training) {
      REQUIRE(host.model->count_correct(batch, &expected[1]).ok());
      REQUIRE(model->count_correct(batch, sums.data() + 1).ok());
    } else {
      REQUIRE(host.model->backward(batch, pass, scale, accumulate, there).ok());
      REQUIRE(model->backward(batch, pass, scale, accumulate, here).ok());
      CHECK(here.ready.back() == there.ready.back());
      CHECK(here.skipped == there.skipped);
    }
    const std::vector<double> got = fetch(sums);
    const double bound = std::is_same_v<T, float> ? 1e-6 : 1e-2;
    CHECK(std::abs(got[0] - expected[0]) <= bound * (1 + std::abs(expected[0])));
    const double ties = std::is_same_v<T, float> ? 0 : 4;  // rounded apart, or together
    CHECK(std::abs(got[1] - expected[1]) <= ties);
    if (pass.training) compare_gradients();
  }
  template <class Number>
  static void compare(const std::string& name, const std::vector<Number>& got,
                      const Values& expected) {
    double largest = 0, difference = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      const double distance = std::abs(static_cast<double>(widen(got[i])) - expected[i]);
      difference = std::isnan(distance) ? INFINITY : std::max(difference, distance);
    }
    INFO(name << ": " << difference << " of " << largest);
    REQUIRE(difference <= kBound<T> * largest);
  }
  void compare_gradients() {
    for (size_t p = 0; p < gradients.size(); ++p) {
      compare(model->parameters()[p].name, fetch(gradients[p]), host.gradients[p]);
    }
    for (size_t b = 0; b < buffers.size(); ++b) {
      compare(model->buffers()[b].name, fetch(buffers[b]), host.buffers[b]);
    }
  }
  Device& device;
  std::unique_ptr<Model<T>> model;
  OnHost& host;
  DeviceArray<double> sums;  // of losses, of hits
  std::vector<DeviceArray<T>> values, gradients;
  std::vector<DeviceArray<BufferElement<T>>> buffers;
};

/// Of a GPT: a context beyond one tile of attention, rows of whole packs.
inline constexpr GptShape kPacked{.layers = 2,
                                  .width = 32,
                                  .heads = 2,
                                  .context = 35,
                                  .vocabulary = 40,
                                  .batch = 3,
                                  .split_tied = false};

inline Samples samples_of(const GptShape& shape) {
  return {shape.batch, shape.context, 0, shape.context, shape.vocabulary};
}

/// Steps of a GPT with all of a batch, accumulated, of nothing; and an evaluation.
template <class T>
void train_gpt(Device& device, const GptShape& shape) {
  INFO("width " << shape.width << ", heads " << shape.heads << ", dropout " << shape.dropout << ", "
                << name(kTypeOf<T>));
  OnHost host(make_gpt<double>(shape));
  auto made = make_cuda_gpt<T>(device, shape);
  REQUIRE(made.ok());
  OnDevice<T> both(device, std::move(*made), host);
  const Samples samples = samples_of(shape);
  both.step(samples.part(0, shape.batch), kTraining, 0.5);
  both.step(samples.part(1, 1), kTraining, 2, true);
  both.step(samples.part(0, 2), kEvaluation);
  both.step(samples.part(0, 0), kTraining, 1, true);
  both.step(samples.part(0, 0), kTraining, 1, false);
}

}  // namespace rondo::trainer::cuda::testing
