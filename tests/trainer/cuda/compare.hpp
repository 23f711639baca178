// Runs a kernel on a GPU, and walks it on the host with the same operands.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <new>
#include <tuple>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/cuda/walk.hpp"
#include "trainer/layers/cuda/launch.hpp"

namespace rondo::trainer::cuda::testing {

/// Memory that the host and the GPU access.
template <class T>
struct Managed {
  using value_type = T;
  T* allocate(size_t count) {
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, count * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { cudaFree(memory); }
  bool operator==(const Managed&) const { return true; }
};
template <class T>
using Buffer = std::vector<T, Managed<T>>;

template <class T>
Buffer<T> noise(size_t count, uint64_t key, double size = 1) {
  Buffer<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = narrow<T>(static_cast<Wide<T>>(size * symmetric_unit(key * 1000003 + i)));
  }
  return values;
}

template <class T>
double as_double(T value) {
  if constexpr (requires { widen(value); }) {
    return widen(value);
  } else {
    return value;
  }
}

template <class T>
void check_close(const Buffer<T>& got, const Buffer<T>& expected, double bound) {
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = as_double(got[i]), b = as_double(expected[i]);
    if (std::abs(a - b) <= bound * (1 + std::abs(b))) continue;
    INFO("element " << i << " of " << got.size());
    REQUIRE(a == b);
  }
}

template <class T>
bool same_bits(const Buffer<T>& a, const Buffer<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// A kernel's argument in one of its runs: the memory of that run's copy of a buffer, or the value.
template <class T>
T* argument(Buffer<T>& copy) {
  return copy.data();
}
template <class Value>
const Value& argument(const Value& value) {
  return value;
}

template <class T>
void check_runs(const Buffer<T>& host, const Buffer<T>& device, const Buffer<T>& again,
                double bound) {
  check_close(device, host, bound);
  REQUIRE(same_bits(device, again));
}
template <class Value>
void check_runs(const Value&, const Value&, const Value&, double) {}

/// Runs the kernel that `make` makes of the arguments on the host and twice on the GPU, each time
/// with its own copies of buffers: within `bound`, and the same bits both times on the GPU.
template <class Make, class... Arguments>
void compare_made(const char* what, double bound, const Make& make, const Arguments&... given) {
  INFO(what);
  std::tuple<Arguments...> host(given...), device(given...), again(given...);
  const auto kernel_of = [&](auto& arguments) {
    return std::apply([&](auto&... each) { return make(argument(each)...); }, arguments);
  };
  testing::walk(kernel_of(host));
  for (auto* arguments : {&device, &again}) {
    auto gpu = Device::open(0);
    REQUIRE(gpu.ok());
    launch(**gpu, what, kernel_of(*arguments));
    const Status done = (*gpu)->wait();
    INFO(done.message());
    REQUIRE(done.ok());
  }
  [&]<size_t... kI>(std::index_sequence<kI...>) {
    (check_runs(std::get<kI>(host), std::get<kI>(device), std::get<kI>(again), bound), ...);
  }
  (std::index_sequence_for<Arguments...>{});
}

/// The same of a kernel whose members are the arguments.
template <class Kernel, class... Arguments>
void compare(const char* what, double bound, const Arguments&... members) {
  compare_made(
      what, bound, [](auto... each) { return Kernel{each...}; }, members...);
}

/// For `terms` roundings in float; a bfloat16 may then be rounded to the next one, which is up to
/// 2^-7 away.
template <class T>
double bound_of(double terms) {
  return terms * 0x1p-23 + (std::is_same_v<T, BFloat16Bits>  ? 0x1p-6
                            : std::is_same_v<T, Float16Bits> ? 0x1p-9
                                                             : 0);
}

}  // namespace rondo::trainer::cuda::testing
