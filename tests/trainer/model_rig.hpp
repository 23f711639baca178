// What every model promises, as checks of one with storage of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/gradient_check.hpp"
#include "tests/trainer/model_storage.hpp"

namespace rondo::trainer::testing {

/// Keeps and spoils each gradient, or each part of one, as soon as it is said to be final.
template <class T>
struct Spoiler : BackwardListener {
  static constexpr T kSpoilt = T{-1e30f};

  explicit Spoiler(std::vector<std::vector<T>>& its_gradients)
      : gradients(its_gradients), done(its_gradients.size()) {
    for (const auto& gradient : gradients) kept.emplace_back(gradient.size(), T{0});
  }
  void layer_begins(int) override {}
  void gradient_ready(int parameter, size_t count) override {
    const auto p = static_cast<size_t>(parameter);
    REQUIRE(count > done[p]);
    for (size_t i = done[p]; i < count; ++i) kept[p][i] = std::exchange(gradients[p][i], kSpoilt);
    if (done[p] > 0) later_parts.push_back(done[p]);
    done[p] = count;
  }
  void gradient_skipped(int) override { FAIL("nothing is skipped"); }

  std::vector<std::vector<T>>& gradients;
  std::vector<std::vector<T>> kept;
  std::vector<size_t> done, later_parts;  // of each gradient; where later parts begin
};

template <class T>
bool all_are(const std::vector<T>& values, T value) {
  return std::all_of(values.begin(), values.end(), [&](T v) { return v == value; });
}

inline double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double v : values) result = std::max(result, std::abs(v));
  return result;
}

/// The largest difference within a tensor, as a share of the tensor's largest element.
template <class T>
double relative_difference(const std::vector<T>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return difference / std::max(largest(b), 1e-300);
}

/// Of a pass that skips these parameters: every other one's gradient equals central differences.
inline void check_gradients(ModelRig<double>& rig, const Batch& batch, const Pass& pass,
                            double tolerance, const std::set<int>& skipped = {}) {
  const double scale = 0.25;
  rig.train(batch, scale, false, pass);
  for (size_t p = 0; p < rig.values.size(); ++p) {
    if (rig.parameter(p).adds_to >= 0 || skipped.contains(static_cast<int>(p))) continue;
    INFO(rig.parameter(p).name);
    const std::vector<double> gradient = rig.gradient(p);
    REQUIRE(largest(gradient) > 1e-6);  // none of them for nothing
    check_gradient(
        rig.values[p], gradient, [&] { return scale * rig.loss(batch, pass); }, tolerance);
  }
}

/// A gradient that was said to be final is neither written nor read again, and has the same bits
/// every time. Returns where the later parts of gradients began that were told in parts.
template <class T>
std::vector<size_t> check_final_gradients(ModelRig<T>& rig, const Batch& batch,
                                          const Pass& pass = kTraining) {
  rig.train(batch, 1, false, pass);
  const auto expected = rig.gradients;
  Spoiler<T> spoiler(rig.gradients);
  rig.loss(batch, pass);
  REQUIRE(rig.model->backward(batch, pass, 1, false, spoiler).ok());
  const bool same = spoiler.kept == expected;
  CHECK(same);
  for (const auto& gradient : rig.gradients) CHECK(all_are(gradient, Spoiler<T>::kSpoilt));
  return spoiler.later_parts;
}

/// Parts of a batch, accumulated, have its loss and gradient.
inline void check_parts_add_up(ModelRig<double>& rig, const Batch& whole,
                               const std::vector<Batch>& parts, const Pass& pass = kTraining) {
  const double loss = rig.train(whole, 1, false, pass);
  const auto expected = rig.gradients;
  double sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) sum += rig.train(parts[i], 1, i > 0, pass);
  CHECK(sum == Approx(loss).epsilon(1e-13));
  for (size_t p = 0; p < expected.size(); ++p) {
    CHECK(relative_difference(rig.gradients[p], expected[p]) < 1e-12);
  }
}

/// A batch of nothing has no loss; nothing to add to a gradient, or a zero gradient, which is told.
inline void check_empty_batch(ModelRig<double>& rig, const Batch& nothing) {
  const auto before = rig.gradients, buffers = rig.buffers;
  CHECK(rig.train(nothing, 1, true) == 0);
  CHECK(rig.gradients == before);
  CHECK(rig.train(nothing) == 0);
  CHECK(rig.listener.order.size() == rig.values.size());
  for (const auto& gradient : rig.gradients) CHECK(all_are(gradient, 0.0));
  CHECK(rig.buffers == buffers);
}

/// With the same parameters a float's loss is a double's within 1e-6, its gradients' elements within
/// `tolerance` of the tensor's largest.
inline void check_float_follows_double(ModelRig<float>& narrow, ModelRig<double>& wide,
                                       const Batch& batch, double tolerance) {
  for (size_t p = 0; p < wide.values.size(); ++p) {
    wide.values[p].assign(narrow.values[p].begin(), narrow.values[p].end());
  }
  CHECK(narrow.train(batch) == Approx(wide.train(batch)).epsilon(1e-6));
  for (size_t p = 0; p < wide.values.size(); ++p) {
    INFO(wide.parameter(p).name);
    CHECK(relative_difference(narrow.gradients[p], wide.gradients[p]) <= tolerance);
  }
}

}  // namespace rondo::trainer::testing
