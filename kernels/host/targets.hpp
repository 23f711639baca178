// Which instruction sets there are, and kernels for a chosen one: for tests and measurements.
// Everybody else takes move_function() from reduce.hpp.
#pragma once

#include <span>

#include "kernels/reduce.hpp"

namespace rondo::kernels {

/// What this CPU can run, best first; the last is the scalar reference, "SCALAR". Names as
/// Highway's. Thread-safe.
std::span<const char* const> instruction_sets();

/// The kernel for one of them, any case; null if the name is none of instruction_sets(), or a value
/// outside its enumeration. Thread-safe.
MoveFunction move_function_for(const char* instruction_set, DataType type, ReduceOp op);

/// The name in instruction_sets() that `wanted` means, any case; null if none.
const char* find_instruction_set(const char* wanted);

}  // namespace rondo::kernels
