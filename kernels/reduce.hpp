// Reduction kernels: k sources to m destinations, elementwise. The only interface to host/; knows
// no ranks and no transports.
//
// Numerics (README.md): sources are folded left to right in their own type; half, bfloat16 and fp8
// are widened to fp32, folded, divided if requested, and rounded once to nearest even. Integers
// wrap, but not the sum of an average. Min and max propagate NaN, and -0 < +0. No contraction, no fast-math; denormals are kept if
// the caller's thread keeps them (floating_point.hpp). The scalar reference in host/ defines
// correct; every SIMD variant equals it bit for bit, any NaN counting as equal to any other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rondo/types.hpp"

namespace rondo::kernels {

/// One call of a kernel: destinations[j][i] = fold of sources[0..k)[i], for i in [0, count), all j.
/// A destination may equal a source exactly; any other overlap is forbidden. Any alignment is
/// allowed, even below the element's.
struct Move {
  const std::byte* const* sources;
  std::byte* const* destinations;
  uint32_t source_count;       // k >= 1; 1: a byte copy, unless divided or scaled
  uint32_t destination_count;  // m >= 1
  size_t count;                // elements, 0 allowed
  // The result is divided by this; 1 unless the operator is kAvg or kSum. With kAvg up to 2^16
  // integers are summed without overflow. With kSum integers wrap before they are divided.
  uint32_t divisor;
  // How many destinations, the first ones, are written around the cache: large results, and slots
  // where that is cheaper. Ends with a store fence if it did so (not for a few hundred bytes).
  uint32_t nontemporal;
  // For kSum and kMulSum, otherwise null: sources[s] is first multiplied by the value
  // nearest to factors[s] in the type of the fold. Integers: the factor loses its fraction and
  // wraps, as the product does; one outside [-2^63, 2^64) counts as 0. Bools: by factor != 0. Null:
  // no multiplication, at no cost.
  const double* factors = nullptr;
};

using MoveFunction = void (*)(const Move&);

/// The kernel for a type and an operator, for this CPU's best instruction set, or the one in RONDO_KERNELS=scalar|sse4|avx2|avx3 if the CPU has it. Null
/// exactly where supports(type, op) is false. Resolve it once per operation, not per chunk.
MoveFunction move_function(DataType type, ReduceOp op);

/// The scalar reference for the same, always available.
MoveFunction scalar_move_function(DataType type, ReduceOp op);

/// Name of the instruction set that move_function uses, as Highway calls it ("AVX2", "SCALAR").
const char* instruction_set();

/// The value of RONDO_KERNELS if it is unknown or this CPU lacks it, so that the caller can warn;
/// otherwise null.
const char* rejected_instruction_set();

}  // namespace rondo::kernels
