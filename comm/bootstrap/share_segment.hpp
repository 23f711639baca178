// Memory that a communicator's ranks on one host map.
#pragma once

#include <cstddef>

#include "comm/bootstrap/bootstrap.hpp"
#include "rondo/status.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::comm {

/// The host's first rank makes it, zeroed, in whole pages of at least `least_bytes`; the others map it.
/// Every rank calls it at the same point, those of a host with the same arguments; blocks until the
/// first rank has. `name` shows in
/// /proc/PID/maps.
Result<transport::Segment> share_segment(Bootstrap& bootstrap, const char* name,
                                         size_t least_bytes);

}  // namespace rondo::comm
