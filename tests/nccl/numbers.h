/* Small whole numbers in every type of NCCL, so that one table of expected results serves all. C99. */
#pragma once

#include "nccl/abi.h"

static inline size_t size_of_type(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

/* A number of at most `mantissa` + 1 significant bits, as a float of 1 + exponent + mantissa bits. */
static inline unsigned small_float_bits(long value, int exponent, int mantissa) {
  unsigned sign = value < 0 ? 1U : 0U, power = 0;
  unsigned long size = (unsigned long)(value < 0 ? -value : value);
  if (size == 0) return 0;
  while (size >> (power + 1) != 0) ++power;
  const unsigned long fraction = power <= (unsigned)mantissa
                                     ? (size << ((unsigned)mantissa - power)) - (1UL << mantissa)
                                     : (size >> (power - (unsigned)mantissa)) - (1UL << mantissa);
  const unsigned bias = (1U << (exponent - 1)) - 1;
  return sign << (exponent + mantissa) | (power + bias) << mantissa | (unsigned)fraction;
}

/* Writes element `index` of an array of that type. */
static inline void put(void* array, ncclDataType_t type, size_t index, long value) {
  switch (type) {
    case ncclInt8:
      ((int8_t*)array)[index] = (int8_t)value;
      break;
    case ncclUint8:
      ((uint8_t*)array)[index] = (uint8_t)value;
      break;
    case ncclInt32:
      ((int32_t*)array)[index] = (int32_t)value;
      break;
    case ncclUint32:
      ((uint32_t*)array)[index] = (uint32_t)value;
      break;
    case ncclInt64:
      ((int64_t*)array)[index] = value;
      break;
    case ncclUint64:
      ((uint64_t*)array)[index] = (uint64_t)value;
      break;
    case ncclFloat32:
      ((float*)array)[index] = (float)value;
      break;
    case ncclFloat64:
      ((double*)array)[index] = (double)value;
      break;
    case ncclFloat16:
      ((uint16_t*)array)[index] = (uint16_t)small_float_bits(value, 5, 10);
      break;
    case ncclBfloat16:
      ((uint16_t*)array)[index] = (uint16_t)small_float_bits(value, 8, 7);
      break;
    case ncclFloat8e4m3:
      ((uint8_t*)array)[index] = (uint8_t)small_float_bits(value, 4, 3);
      break;
    default:
      ((uint8_t*)array)[index] = (uint8_t)small_float_bits(value, 5, 2);
      break;
  }
}
