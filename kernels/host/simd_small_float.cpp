// Vector kernels of the types that are folded in fp32 (simd.hpp).
#define HWY_TARGET_INCLUDE "kernels/host/simd_small_float.cpp"
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

MoveFunction small_float_kernel(DataType type, ReduceOp op) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return scalar_move_function(type, op);
#else
  return select<VectorKernel, DataType::kFloat16, DataType::kBFloat16, DataType::kFloat8E4M3,
                DataType::kFloat8E5M2>(type, op);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::kernels {

HWY_EXPORT(small_float_kernel);

MoveFunction small_float_kernel(int64_t target, DataType type, ReduceOp op) {
  return HWY_DISPATCH_TABLE(small_float_kernel)[table_index(target)](type, op);
}

}  // namespace rondo::kernels
#endif
