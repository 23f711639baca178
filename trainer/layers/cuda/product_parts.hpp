// Which products cuBLASLt multiplies in place of one that it has only slow kernels for.
#pragma once

#include <vector>

#include "trainer/layers/cuda/products.hpp"

namespace rondo::trainer::cuda {

/// Multiplications above which two products take less time than a slow one.
inline constexpr size_t kWorthTwoProducts = size_t{1} << 32;

/// The products, in the order in which to enqueue them, that together are `product`: itself, or two,
/// of as many multiples of 128 bytes as there are in a row, and of the rest. cuBLASLt's fast kernels
/// for tensor cores want rows, as they lie, that begin at 16 bytes and also hold a multiple of 16
/// bytes (cuBLAS, "Tensor Core Usage"): gaps between rows are not enough. float is never cut:
/// only TF32 (--tf32) multiplies it on tensor cores.
inline std::vector<DeviceProduct> parts_of(DataType type, const DeviceProduct& product,
                                           size_t worth = kWorthTwoProducts) {
  constexpr size_t kNumbers = 64, kOf16Bytes = 8;  // of two bytes
  const auto odd = [](size_t extent) { return extent > kNumbers && extent % kOf16Bytes != 0; };
  const bool aligned = (product.a.stride | product.b.stride | product.c_stride) % kOf16Bytes == 0;
  const bool worthy = product.m * product.n * product.k >= worth;
  if (size_of(type) != 2 || !aligned || !worthy) return {product};
  const auto offset = [](const void* data, size_t numbers) {
    return static_cast<const std::byte*>(data) + 2 * numbers;
  };
  const auto in_row = [](const DeviceMatrix& matrix, bool row) {  // from a part to the next
    return row ? size_t{1} : matrix.stride;
  };
  DeviceProduct most = product, rest = product;
  if (odd(product.n)) {
    most.n -= product.n % kNumbers;
    rest.n -= most.n;
    rest.b.data = offset(product.b.data, most.n * in_row(product.b, !product.b.transposed));
    rest.c = const_cast<std::byte*>(offset(product.c, most.n));
    if (product.bias != nullptr) rest.bias = offset(product.bias, most.n);
    return {most, rest};
  }
  if (product.a.transposed && odd(product.m)) {
    most.m -= product.m % kNumbers;
    rest.m -= most.m;
    rest.a.data = offset(product.a.data, most.m);
    rest.c = const_cast<std::byte*>(offset(product.c, most.m * product.c_stride));
    return {most, rest};
  }
  // The rest is rounded before the others are added: it is the smaller sum. A product that
  // accumulates stays whole, as it would be rounded twice.
  if ((!product.a.transposed || product.b.transposed) && odd(product.k) && !product.accumulate) {
    most.k -= product.k % kNumbers;
    rest.k -= most.k;
    rest.a.data = offset(product.a.data, most.k * in_row(product.a, !product.a.transposed));
    rest.b.data = offset(product.b.data, most.k * in_row(product.b, product.b.transposed));
    most.accumulate = true;
    most.bias = nullptr;  // the rest has it
    return {rest, most};
  }
  return {product};
}

}  // namespace rondo::trainer::cuda
