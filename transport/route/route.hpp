// Between the ranks of one host one transport, between hosts another: each link is made by the one
// that reaches its peer. What only memory can do (publish, signal, resolve) exists on one host only,
// so schedules across hosts do without it.
#pragma once

#include <memory>
#include <vector>

#include "transport/link.hpp"

namespace rondo::transport {

/// `near`: links to the ranks of this host, which it knows by their numbers there; null where this
/// rank is alone on its host. `far`: links to all others, by rank. `local_ranks`, by rank: the
/// number on this host, or -1.
std::unique_ptr<Transport> route(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
                                 std::vector<int> local_ranks);

}  // namespace rondo::transport
