// Vector kernels of fp32 and fp64 (simd.hpp).
#define HWY_TARGET_INCLUDE "kernels/host/simd_float.cpp"
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

MoveFunction float_kernel(DataType type, ReduceOp op) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return scalar_move_function(type, op);
#else
  return select<VectorKernel, DataType::kFloat32, DataType::kFloat64>(type, op);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::kernels {

HWY_EXPORT(float_kernel);

MoveFunction float_kernel(int64_t target, DataType type, ReduceOp op) {
  return HWY_DISPATCH_TABLE(float_kernel)[table_index(target)](type, op);
}

}  // namespace rondo::kernels
#endif
