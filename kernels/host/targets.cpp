// The instruction sets that are compiled in and that this CPU has, and their kernels by name.
#include "kernels/host/targets.hpp"

#include <strings.h>

#include <vector>

#include "kernels/host/simd.hpp"

namespace rondo::kernels {
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
    for (const auto group : {float_kernel, small_float_kernel, integer_kernel}) {
      if (const MoveFunction found = group(target.bit, type, op)) return found;
    }
  }
  return nullptr;
}

Conversion conversion_for(const char* instruction_set, DataType type) {
  for (const Target& target : targets()) {
    if (strcasecmp(instruction_set, target.name) == 0) return vector_conversion(target.bit, type);
  }
  return scalar_conversion(type);
}

}  // namespace rondo::kernels
