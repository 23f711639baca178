// Vector kernels of the types that are folded in fp32, and their conversions (simd.hpp).
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

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
template <class E>
void narrow_vectors(const float* from, uint16_t* to, size_t count, float factor) {
  using L = Lanes<E, kFull>;
  const typename L::D d;
  const typename L::D16 d16;
  const auto by = hn::Set(d, factor);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(L::narrowed(hn::Mul(hn::LoadU(d, from + i), by)), d16, to + i);
  }
  for (; i < count; ++i) to[i] = E::narrow(from[i] * factor);
}

template <class E>
void widen_vectors(const uint16_t* from, float* to, size_t count) {
  using L = Lanes<E, kFull>;
  const typename L::D d;
  const typename L::D16 d16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(L::widened(hn::LoadU(d16, from + i)), d, to + i);
  }
  for (; i < count; ++i) to[i] = E::widen(from[i]);
}
#endif

Conversion vector_conversion(DataType type) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return scalar_conversion(type);
#else
  if (type == DataType::kFloat16) return {narrow_vectors<Half>, widen_vectors<Half>};
  return {narrow_vectors<BFloat16>, widen_vectors<BFloat16>};
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::kernels {

HWY_EXPORT(small_float_kernel);
HWY_EXPORT(vector_conversion);

MoveFunction small_float_kernel(int64_t target, DataType type, ReduceOp op) {
  return HWY_DISPATCH_TABLE(small_float_kernel)[table_index(target)](type, op);
}

Conversion vector_conversion(int64_t target, DataType type) {
  return HWY_DISPATCH_TABLE(vector_conversion)[table_index(target)](type);
}

}  // namespace rondo::kernels
#endif
