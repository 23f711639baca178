// A reference executor for the tests: carries programs out on integers, with real FIFOs and in a
// given interleaving of the ranks. Shares no code with the verifier, so that one can be held
// against the other. Slow, and never used outside of tests.
#pragma once

#include <cstdint>
#include <string>

#include "comm/schedule/verifier.hpp"

namespace rondo::schedule::test {

/// Runs one operation; `seed` chooses the interleaving. Empty when all ranks come to the end with
/// the right results and empty FIFOs; else what went wrong.
std::string execute(const LoweredOperation& op, const Limits& limits, uint64_t seed);

}  // namespace rondo::schedule::test
