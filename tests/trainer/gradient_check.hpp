// Central differences in double: the reference that every hand-written backward is held against.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/sanitized.hpp"

namespace rondo::trainer::testing {

/// `loss` is a function of `values`; `gradient` is what backward claims. Checks every element,
/// under sanitizers every fifth: the error of a central difference with step h is
/// O(h^2) + O(epsilon / h), together about 1e-9 for functions of size one.
inline void check_gradient(std::vector<double>& values, const std::vector<double>& gradient,
                           const std::function<double()>& loss, double tolerance = 1e-7) {
  constexpr double kStep = 1e-5;
  REQUIRE(gradient.size() == values.size());
  for (size_t i = 0; i < values.size(); i += rondo::testing::kSanitized ? 5 : 1) {
    const double saved = values[i];
    values[i] = saved + kStep;
    const double above = loss();
    values[i] = saved - kStep;
    const double below = loss();
    values[i] = saved;
    const double expected = (above - below) / (2 * kStep);
    INFO("element " << i << ": backward " << gradient[i] << ", differences " << expected);
    REQUIRE(std::abs(gradient[i] - expected) <= tolerance * (1 + std::abs(expected)));
  }
}

}  // namespace rondo::trainer::testing
