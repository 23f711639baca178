// The vector kernels, compiled once per instruction set by foreach_target.h, and the table of them.
// The only translation unit with instructions that not every CPU has; decides nothing about which
// one is used (dispatch.cpp does).

// SSE4 is old enough. Vectors of unknown length cannot be members or array elements, which
// lanes-inl.hpp needs.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#define HWY_TARGET_INCLUDE "kernels/host/simd.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // no vectors; never listed below
#include "kernels/reduce.hpp"
#else
#include "kernels/host/move-inl.hpp"
#endif

HWY_BEFORE_NAMESPACE();
namespace rondo::kernels {
namespace HWY_NAMESPACE {

MoveFunction vector_move_function(DataType type, ReduceOp op) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return scalar_move_function(type, op);
#else
  return select<VectorKernel>(type, op);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <strings.h>

#include <vector>

#include "kernels/host/targets.hpp"

namespace rondo::kernels {

HWY_EXPORT(vector_move_function);

namespace {

const char* const kScalar = hwy::TargetName(HWY_SCALAR);

struct Target {
  int64_t bit;
  const char* name;
};

// Lower bits are better instruction sets.
std::vector<Target> supported_targets() {
  std::vector<Target> targets;
  int64_t bits = hwy::SupportedTargets() & HWY_TARGETS & ~(HWY_SCALAR | HWY_EMU128);
  for (; bits != 0; bits &= bits - 1) {
    const int64_t bit = bits & -bits;
    targets.push_back({.bit = bit, .name = hwy::TargetName(bit)});
  }
  return targets;
}

const std::vector<Target>& targets() {
  static const std::vector<Target> kTargets = supported_targets();
  return kTargets;
}

}  // namespace

std::span<const char* const> instruction_sets() {
  static const std::vector<const char*> kNames = [] {
    std::vector<const char*> names;
    for (const Target& target : targets()) names.push_back(target.name);
    names.push_back(kScalar);
    return names;
  }();
  return kNames;
}

const char* find_instruction_set(const char* wanted) {
  for (const char* name : instruction_sets()) {
    if (strcasecmp(name, wanted) == 0) return name;
  }
  return nullptr;
}

MoveFunction move_function_for(const char* instruction_set, DataType type, ReduceOp op) {
  if (strcasecmp(instruction_set, kScalar) == 0) return scalar_move_function(type, op);
  for (const Target& target : targets()) {
    if (strcasecmp(instruction_set, target.name) != 0) continue;
    hwy::ChosenTarget
        chosen;  // one of our own: Highway's is global, and its stub costs an indirection a call
    chosen.Update(target.bit);
    constexpr bool kOnlyOne = HWY_TARGETS == HWY_STATIC_TARGET;  // then the table has one entry
    const size_t index = kOnlyOne ? 0 : chosen.GetIndex();
    return HWY_DISPATCH_TABLE(vector_move_function)[index](type, op);
  }
  return nullptr;
}

}  // namespace rondo::kernels
#endif
