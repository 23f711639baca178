// Values for the tests of the trainer's GPU kernels, and what they have to equal.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/cuda/walk.hpp"

namespace rondo::trainer::cuda::testing {

using Values = std::vector<double>;
inline constexpr Order kOrders[] = {Order::kForwards, Order::kBackwards, Order::kShuffled};

inline Values noise(size_t count, uint64_t key, double size = 1) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = size * symmetric_unit(key * 1000003 + i);
  return values;
}

template <class T>
std::vector<T> as(const Values& values) {
  std::vector<T> to(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    to[i] = narrow<T>(static_cast<Wide<T>>(values[i]));
  }
  return to;
}

template <class T>
Values wide(const std::vector<T>& values) {
  Values to(values.size());
  for (size_t i = 0; i < values.size(); ++i) to[i] = widen(values[i]);
  return to;
}

/// A type's rounding error, for values near one.
template <class T>
double unit() {
  if constexpr (std::is_same_v<T, BFloat16Bits>) return 0x1p-8;
  if constexpr (std::is_same_v<T, Float16Bits>) return 0x1p-11;
  return static_cast<double>(std::numeric_limits<Wide<T>>::epsilon());
}

inline void check_close(const Values& got, const Values& expected, double bound) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - expected[i]) <= bound * (1 + std::abs(expected[i]))) continue;
    INFO("element " << i << " of " << got.size());
    REQUIRE(got[i] == expected[i]);
  }
}

template <class T>
void check_close(const std::vector<T>& got, const Values& expected, double bound) {
  check_close(wide(got), expected, bound);
}

/// Walks the kernel that has these members; a vector stands for its elements.
template <class Kernel, class... Members>
void walk_of(Order order, Members&&... members) {
  const auto data = []<class Member>(Member& member) {
    if constexpr (requires { member.data(); }) {
      return member.data();
    } else {
      return member;
    }
  };
  walk(Kernel{data(members)...}, order);
}
template <class Kernel, class... Members>
void walk_of(Members&&... members) {
  walk_of<Kernel>(Order::kForwards, members...);
}

/// The same bits, whatever the order in which a block's threads run.
template <class T, class Run>
std::vector<T> in_every_order(const Run& run) {
  const std::vector<T> first = run(kOrders[0]);
  for (const Order order : {kOrders[1], kOrders[2]}) {
    const std::vector<T> again = run(order);
    REQUIRE(again.size() == first.size());
    REQUIRE(
        (first.empty() || std::memcmp(again.data(), first.data(), first.size() * sizeof(T)) == 0));
  }
  return first;
}

/// f(T{}) for each type.
template <class F>
void for_each_type(const F& f) {
  f(double{});
  f(float{});
  f(BFloat16Bits{});
  f(Float16Bits{});
}

/// Calls f(T{}, number of elements of a pack) for the types of a GPU and, in double, for checks.
template <class F>
void for_types(const F& f) {
  f(double{}, std::integral_constant<int, 1>{});
  f(double{}, std::integral_constant<int, kPack<double>>{});
  f(float{}, std::integral_constant<int, 1>{});
  f(float{}, std::integral_constant<int, kPack<float>>{});
  f(BFloat16Bits{}, std::integral_constant<int, kPack<BFloat16Bits>>{});
}

}  // namespace rondo::trainer::cuda::testing
