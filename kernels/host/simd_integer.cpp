// Vector kernels of integers and bools (simd.hpp).
#define HWY_TARGET_INCLUDE "kernels/host/simd_integer.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "kernels/host/simd.hpp"
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128  // no vectors; never listed by targets.cpp
#include "kernels/host/move-inl.hpp"
#endif

HWY_BEFORE_NAMESPACE();
namespace rondo::kernels {
namespace HWY_NAMESPACE {

MoveFunction integer_kernel(DataType type, ReduceOp op) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return scalar_move_function(type, op);
#else
  return select<VectorKernel, DataType::kInt32, DataType::kInt64, DataType::kUint8, DataType::kInt8,
                DataType::kInt16, DataType::kUint16, DataType::kUint32, DataType::kUint64,
                DataType::kBool>(type, op);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::kernels {

HWY_EXPORT(integer_kernel);

MoveFunction integer_kernel(int64_t target, DataType type, ReduceOp op) {
  return HWY_DISPATCH_TABLE(integer_kernel)[table_index(target)](type, op);
}

}  // namespace rondo::kernels
#endif
