// The vector kernels by instruction set: one function per simd_*.cpp. These compile move-inl.hpp
// for a group of types each, so that they build in parallel, and are the only translation units
// with instructions that not every CPU has. targets.cpp decides which set is used.
#pragma once

#include "hwy/targets.h"
#include "kernels/convert.hpp"
#include "kernels/reduce.hpp"

namespace rondo::kernels {

/// The kernel of a type in the group, for an instruction set by Highway's bit, one of HWY_TARGETS;
/// null for other types, and where supports() is false.
MoveFunction float_kernel(int64_t target, DataType type, ReduceOp op);        // fp32, fp64
MoveFunction small_float_kernel(int64_t target, DataType type, ReduceOp op);  // fp16, bf16, fp8
MoveFunction integer_kernel(int64_t target, DataType type, ReduceOp op);      // and bool

/// The conversions of kFloat16 or kBFloat16 for such an instruction set.
Conversion vector_conversion(int64_t target, DataType type);

/// The index of an instruction set in HWY_DISPATCH_TABLE. Highway's own choice is global, and its
/// stub would cost an indirection per call.
inline size_t table_index(int64_t target) {
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  constexpr bool kOnlyOne = HWY_TARGETS == HWY_STATIC_TARGET;  // then the table has one entry
  return kOnlyOne ? 0 : chosen.GetIndex();
}

}  // namespace rondo::kernels
