// SGD and AdamW against references written from PyTorch's documentation in double, and against the
// same operations one by one, which every instruction set must equal bit for bit.
#include "trainer/optim/optimizer.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "hwy/targets.h"
#include "tests/harness/catch.hpp"
#include "tests/trainer/layer_values.hpp"
#include "trainer/optim/simd.hpp"

using namespace rondo::trainer;
using rondo::trainer::testing::noise;

namespace {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Runs `body` once with each instruction set of this CPU.
void with_every_instruction_set(const std::function<void()>& body) {
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    INFO(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// The formulas of torch.optim.SGD and AdamW, a parameter at a time, in double.
struct Reference {
  double parameter, first = 0, second = 0;

  void sgd(const SgdOptions& options, int step, double rate, double gradient) {
    gradient += options.weight_decay * parameter;
    first = step == 1 ? gradient : options.momentum * first + gradient;
    parameter -= rate * (options.momentum != 0 ? first : gradient);
  }
  void adamw(const AdamWOptions& options, int step, double rate, double gradient) {
    parameter -= rate * options.weight_decay * parameter;
    first = options.beta1 * first + (1 - options.beta1) * gradient;
    second = options.beta2 * second + (1 - options.beta2) * gradient * gradient;
    const double mean = first / (1 - std::pow(options.beta1, step));
    const double square = second / (1 - std::pow(options.beta2, step));
    parameter -= rate * mean / (std::sqrt(square) + options.epsilon);
  }
  void step(const OptimizerOptions& options, int step, double rate, double gradient) {
    if (const auto* o = std::get_if<SgdOptions>(&options)) sgd(*o, step, rate, gradient);
    if (const auto* o = std::get_if<AdamWOptions>(&options)) adamw(*o, step, rate, gradient);
  }
};

OptimizerOptions without_decay(OptimizerOptions options) {
  std::visit([](auto& o) { o.weight_decay = 0; }, options);
  return options;
}

/// The largest error over 10 steps, relative to values of size one. The last third does not decay.
template <class T>
double error_after_ten_steps(const OptimizerOptions& options) {
  constexpr size_t kCount = 37;
  constexpr size_t kDecaying = 24;
  const auto optimizer = make_optimizer<T>(options, kCount);
  std::vector<T> parameters = noise<T>(kCount, 1);
  std::vector<Reference> references;
  for (const T value : parameters) references.push_back({static_cast<double>(value)});
  double error = 0;
  for (int step = 1; step <= 10; ++step) {
    const double rate = 0.01 * step;
    const std::vector<T> gradients = noise<T>(kCount, 100 + static_cast<uint64_t>(step));
    std::vector<T> used = gradients;
    optimizer->begin_step(rate);
    optimizer->update(0, kDecaying, true, used.data(), parameters.data());
    optimizer->update(kDecaying, kCount, false, used.data(), parameters.data());
    for (size_t i = 0; i < kCount; ++i) {
      references[i].step(i < kDecaying ? options : without_decay(options), step, rate,
                         static_cast<double>(gradients[i]));
      error =
          std::max(error, std::abs(static_cast<double>(parameters[i]) - references[i].parameter));
    }
  }
  REQUIRE(optimizer->steps() == 10);
  return error;
}

const std::vector<OptimizerOptions> kAllOptions = {
    SgdOptions{.momentum = 0},
    SgdOptions{.momentum = 0, .weight_decay = 0.1},
    SgdOptions{},
    SgdOptions{.momentum = 0.9, .weight_decay = 0.1},
    AdamWOptions{},
    AdamWOptions{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.5},
    AdamWOptions{.weight_decay = 0}};

}  // namespace

TEST_CASE("optimizer: ten steps are those of PyTorch's formulas") {
  for (size_t i = 0; i < kAllOptions.size(); ++i) {
    INFO("options " << i);
    CHECK(error_after_ten_steps<double>(kAllOptions[i]) < 1e-14);
    CHECK(error_after_ten_steps<float>(kAllOptions[i]) < 2e-6);
  }
}

TEST_CASE("optimizer: values computed by hand") {
  double parameter = 1;
  const auto step = [&](Optimizer<double>& optimizer, double gradient) {
    optimizer.begin_step(0.1);
    optimizer.update(0, 1, true, &gradient, &parameter);
  };
  const auto sgd = make_optimizer<double>(SgdOptions{.momentum = 0.9, .weight_decay = 0.1}, 1);
  step(*sgd, 0.5);
  CHECK(parameter == Approx(0.94).epsilon(1e-15));  // 1 - 0.1 * (0.5 + 0.1)
  step(*sgd, 0.5);
  CHECK(parameter == Approx(0.8266).epsilon(1e-15));  // velocity 0.9 * 0.6 + 0.5 + 0.094

  parameter = 1;
  const auto adamw = make_optimizer<double>(AdamWOptions{}, 1);
  step(*adamw, 0.5);
  // Corrected mean 0.5, root of corrected square 0.5.
  CHECK(parameter == Approx(0.999 - 0.1 * 0.5 / 0.50000001).epsilon(1e-14));
  step(*adamw, -0.5);
  // mean 0.05 - 0.055 = -0.005, corrected by 0.19; the square's root is still 0.5.
  CHECK(parameter ==
        Approx(0.899000002 * 0.999 + 0.1 * (0.005 / 0.19) / 0.50000001).epsilon(1e-14));
}

TEST_CASE("optimizer: the bits do not depend on where ranges are cut") {
  constexpr size_t kCount = 101;
  for (size_t which = 0; which < kAllOptions.size(); ++which) {
    INFO("options " << which);
    const auto whole = make_optimizer<float>(kAllOptions[which], kCount);
    const auto cut = make_optimizer<float>(kAllOptions[which], kCount);
    std::vector<float> a = noise<float>(kCount, 3);
    std::vector<float> b = a;
    for (uint64_t step = 1; step <= 4; ++step) {
      std::vector<float> gradients = noise<float>(kCount, 10 + step), same = gradients;
      whole->begin_step(0.1);
      cut->begin_step(0.1);
      whole->update(0, kCount, true, same.data(), a.data());
      for (size_t end = kCount; end > 0;) {  // from the back, pieces of 1, 2, 3, ... elements
        const size_t begin = end - std::min<size_t>(end, 1 + (kCount - end) % 23);
        cut->update(begin, end, true, gradients.data(), b.data());
        end = begin;
      }
      cut->update(5, 5, true, gradients.data(), b.data());  // nothing
    }
    CHECK(same_bits(a, b));
    for (size_t s = 0; s < whole->state().size(); ++s) {
      CHECK(std::memcmp(whole->state()[s].second, cut->state()[s].second, kCount * 4) == 0);
    }
  }
}

TEST_CASE("optimizer: what no range covers stays as it is, the rest's gradients become zeros") {
  const auto optimizer = make_optimizer<float>(AdamWOptions{}, 8);
  std::vector<float> parameters(8, 1);
  std::vector<float> gradients(8, 1);
  optimizer->begin_step(0.1);
  optimizer->update(2, 5, true, gradients.data(), parameters.data());
  for (size_t i = 0; i < 8; ++i) {
    const bool covered = i >= 2 && i < 5;
    CHECK((parameters[i] != 1) == covered);
    CHECK(gradients[i] == (covered ? 0 : 1));
    CHECK((optimizer->state()[0].second[i] != 0) == covered);
    CHECK((optimizer->state()[1].second[i] != 0) == covered);
  }
}

TEST_CASE("optimizer: goes on from a saved state bit for bit") {
  constexpr size_t kCount = 33;
  for (const OptimizerOptions& options : kAllOptions) {
    const auto first = make_optimizer<double>(options, kCount);
    std::vector<double> parameters = noise<double>(kCount, 5);
    const auto step = [&](Optimizer<double>& optimizer, uint64_t number, auto& values) {
      std::vector<double> gradients = noise<double>(kCount, 50 + number);
      optimizer.begin_step(0.05);
      optimizer.update(0, kCount, true, gradients.data(), values.data());
    };
    for (uint64_t s = 1; s <= 3; ++s) step(*first, s, parameters);
    const auto second = make_optimizer<double>(options, kCount);
    for (size_t i = 0; i < first->state().size(); ++i) {
      CHECK(second->state()[i].first == first->state()[i].first);
      std::memcpy(second->state()[i].second, first->state()[i].second, kCount * sizeof(double));
    }
    second->set_steps(first->steps());
    std::vector<double> copy = parameters;
    for (uint64_t s = 4; s <= 6; ++s) {
      step(*first, s, parameters);
      step(*second, s, copy);
    }
    CHECK(same_bits(parameters, copy));
  }
}

TEST_CASE("optimizer: names of the state are PyTorch's") {
  CHECK(make_optimizer<float>(SgdOptions{}, 1)->state()[0].first == "momentum");
  CHECK(make_optimizer<float>(SgdOptions{.momentum = 0}, 1)->state().empty());
  const auto state = make_optimizer<float>(AdamWOptions{}, 1)->state();
  REQUIRE(state.size() == 2);
  CHECK(state[0].first == "exp_avg");
  CHECK(state[1].first == "exp_avg_sq");
  CHECK(make_optimizer<float>(AdamWOptions{}, 0)->state().size() == 2);
}

TEST_CASE("optimizer: NaN and infinity arrive") {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const OptimizerOptions& options : kAllOptions) {
    for (size_t position = 0; position < 19; ++position) {
      for (const float value : bad) {
        std::vector<float> gradients(19, 1), parameters(19, 1);
        gradients[position] = value;
        const auto optimizer = make_optimizer<float>(options, 19);
        optimizer->begin_step(0.1);
        optimizer->update(0, 19, true, gradients.data(), parameters.data());
        for (size_t i = 0; i < 19; ++i) {
          REQUIRE(std::isfinite(parameters[i]) == (i != position));
        }
      }
    }
  }
}

namespace {

// One by one, in simd.hpp's words.
template <class T>
void plain_sgd(const simd::SgdFactors<T>& f, const std::vector<T>& g, std::vector<T>& v,
               std::vector<T>& p) {
  for (size_t i = 0; i < g.size(); ++i) {
    const T gradient = f.weight_decay != 0 ? g[i] + f.weight_decay * p[i] : g[i];
    v[i] = f.momentum * v[i] + gradient;
    p[i] = p[i] - f.rate * v[i];
  }
}
template <class T>
void plain_adamw(const simd::AdamWFactors<T>& f, const std::vector<T>& g, std::vector<T>& m,
                 std::vector<T>& s, std::vector<T>& p) {
  for (size_t i = 0; i < g.size(); ++i) {
    m[i] = m[i] + f.first_weight * (g[i] - m[i]);
    s[i] = f.second_keep * s[i] + f.second_weight * g[i] * g[i];
    const T root = std::sqrt(s[i]) / f.second_correction_root;
    p[i] = p[i] * f.keep - f.step_size * m[i] / (root + f.epsilon);
  }
}

template <class T>
void check_bits_of_updates() {
  const simd::SgdFactors<T> sgd = {T(0.9), T(0.01), T(0.123)};
  const simd::AdamWFactors<T> adamw = {T(0.999),  T(0.1),  T(0.999), T(0.001),
                                       T(0.0316), T(1e-8), T(0.3)};
  for (const size_t count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100}) {
    INFO("count " << count);
    const std::vector<T> g = noise<T>(count, 7), zeros(count);
    std::vector<T> v = noise<T>(count, 8), p = noise<T>(count, 9);
    std::vector<T> plain_v = v, plain_p = p;
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<T> used = g;
      simd::flat_kernels<T>().sgd(sgd, count, used.data(), v.data(), p.data());
      CHECK(same_bits(used, zeros));
      plain_sgd(sgd, g, plain_v, plain_p);
    }
    CHECK(same_bits(v, plain_v));
    CHECK(same_bits(p, plain_p));
    std::vector<T> m = noise<T>(count, 10), s(count);
    std::vector<T> plain_m = m, plain_s = s;
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<T> used = g;
      simd::flat_kernels<T>().adamw(adamw, count, used.data(), m.data(), s.data(), p.data());
      CHECK(same_bits(used, zeros));
      plain_adamw(adamw, g, plain_m, plain_s, plain_p);
    }
    CHECK(same_bits(m, plain_m));
    CHECK(same_bits(s, plain_s));
    CHECK(same_bits(p, plain_p));
  }
}

}  // namespace

TEST_CASE("optimizer: every instruction set gives the bits of one element at a time") {
  with_every_instruction_set([] {
    check_bits_of_updates<float>();
    check_bits_of_updates<double>();
  });
}

TEST_CASE("optimizer: every instruction set adds up squares in the same order") {
  for (const size_t count : {0, 1, 15, 16, 17, 100, 4095, 4096}) {
    const std::vector<float> values = noise<float>(count + 1, 11);
    const std::vector<double> wide = noise<double>(count + 1, 12);
    double lanes[16] = {}, wide_lanes[16] = {};
    for (size_t i = 0; i < count; ++i) {
      const double x = static_cast<double>(values[i + 1]);
      lanes[i % 16] += x * x;
      wide_lanes[i % 16] += wide[i + 1] * wide[i + 1];
    }
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t lane = 0; lane < half; ++lane) {
        lanes[lane] += lanes[lane + half];
        wide_lanes[lane] += wide_lanes[lane + half];
      }
    }
    with_every_instruction_set([&] {  // also unaligned
      CHECK(simd::flat_kernels<float>().sum_of_squares(values.data() + 1, count) == lanes[0]);
      CHECK(simd::flat_kernels<double>().sum_of_squares(wide.data() + 1, count) == wide_lanes[0]);
    });
  }
}
