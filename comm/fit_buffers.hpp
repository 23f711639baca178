// Calls on buffers that have a size and a type: whether both fit each other and the call.
#pragma once

#include "rondo/call.hpp"
#include "rondo/memory.hpp"

namespace rondo::comm {

/// Fills in, out, count and type of the call. Returns kInvalidArgument, which names the buffer, if
/// the sizes or types do not fit. Wrong numbers of blocks are left to check().
Status fit(Call& call, const InSpan& in, const OutSpan& out, int rank, int size);

}  // namespace rondo::comm
