// The available instruction sets, and kernels for a chosen one: for tests and measurements. Other
// code uses move_function() from reduce.hpp.
#pragma once

#include <span>

#include "kernels/convert.hpp"
#include "kernels/reduce.hpp"

namespace rondo::kernels {

/// The instruction sets of this CPU, best first; the last is the scalar reference, "SCALAR".
/// Highway's names. Thread-safe.
std::span<const char* const> instruction_sets();

/// The kernel for one of them, in any case; null for a name that is not in instruction_sets(), or a
/// value outside its enumeration. Thread-safe.
MoveFunction move_function_for(const char* instruction_set, DataType type, ReduceOp op);

/// The conversions of kFloat16 or kBFloat16 for one of them; the scalar ones for another name.
Conversion conversion_for(const char* instruction_set, DataType type);

/// The name in instruction_sets() that equals `wanted` in any case; null without one.
const char* find_instruction_set(const char* wanted);

}  // namespace rondo::kernels
