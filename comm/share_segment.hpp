// Memory that all ranks of a communicator map.
#pragma once

#include <cstddef>

#include "comm/bootstrap/bootstrap.hpp"
#include "rondo/status.hpp"
#include "transport/shm/segment.hpp"

namespace rondo::comm {

/// Rank 0 makes it, zeroed, whole pages of at least `least_bytes`, and the others map it. Every
/// rank calls it at the same point with the same arguments; blocks until rank 0 has. `name` is for
/// who reads /proc/PID/maps.
Result<transport::Segment> share_segment(Bootstrap& bootstrap, const char* name,
                                         size_t least_bytes);

}  // namespace rondo::comm
