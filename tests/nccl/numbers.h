/* Small whole numbers in every type of NCCL, so that one table of expected results serves all. C99. */
#pragma once

#include <string.h>

#include "nccl/abi.h"

static inline size_t size_of_type(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

/* A number of at most `mantissa` + 1 significant bits, as a float of 1 + exponent + mantissa bits. */
static inline uint64_t float_bits(long value, int exponent, int mantissa) {
  const uint64_t sign = value < 0 ? 1 : 0, size = (uint64_t)(value < 0 ? -value : value);
  if (size == 0) return 0;
  int power = 0;
  while (size >> (power + 1) != 0) ++power;
  const uint64_t significant =
      power <= mantissa ? size << (mantissa - power) : size >> (power - mantissa);
  const uint64_t bias = (UINT64_C(1) << (exponent - 1)) - 1;
  return sign << (exponent + mantissa) | ((uint64_t)power + bias) << mantissa |
         (significant - (UINT64_C(1) << mantissa));
}

/* Writes element `index` of an array of that type, on a little-endian machine. */
static inline void put(void* array, ncclDataType_t type, size_t index, long value) {
  static const int exponents[] = {0, 0, 0, 0, 0, 0, 5, 8, 11, 8, 4, 5}; /* 0: whole numbers */
  static const int mantissas[] = {0, 0, 0, 0, 0, 0, 10, 23, 52, 7, 3, 2};
  const uint64_t bits =
      exponents[type] == 0 ? (uint64_t)value : float_bits(value, exponents[type], mantissas[type]);
  memcpy((unsigned char*)array + index * size_of_type(type), &bits, size_of_type(type));
}
