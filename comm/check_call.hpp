// What is checked of a call before anything moves. Knows nothing of how an operation is carried out.
#pragma once

#include "comm/host/lanes.hpp"
#include "comm/plans.hpp"
#include "rondo/call.hpp"

namespace rondo::comm {

/// The call with default values in the fields that its collective does not use, so that ranks do not
/// disagree about these.
Call without_unused(const Call& call);

/// The blocks of a _v collective, with all offsets; empty for other collectives.
schedule::BlockLayout layout_of(const Call& call);

/// Whether `rank` uses its In, or Out, at all.
bool reads(const Call& call, int rank);
bool writes(const Call& call, int rank);

/// `layout`: layout_of() the call. Returns kInvalidArgument, with the offending value, if the call
/// makes no sense on this rank.
Status check(const Call& call, const schedule::BlockLayout& layout, const CallOptions& options,
             int rank, int size);
/// The same without a look at buffers and blocks.
Status check_values(const Call& call, const CallOptions& options, int size);

/// The same for a message.
const char* word_for(const engine::Transfer& transfer);
Status check(const engine::Transfer& transfer, const CallOptions& options, int size);

/// What the plans need to know of a call that check() has passed.
Shape shape_of(const Call& call, schedule::BlockLayout layout, const CallOptions& options,
               int rank);

}  // namespace rondo::comm
