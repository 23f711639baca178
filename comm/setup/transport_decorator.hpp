// A hook for tests: what assemble() puts around a communicator's transport, below the pace. Null in
// every program; a test that sets it does so before it makes communicators.
#pragma once

#include <memory>

#include "transport/link.hpp"

namespace rondo::comm {

using TransportDecorator = std::unique_ptr<transport::Transport> (*)(
    std::unique_ptr<transport::Transport> inner, int rank, int ranks, int channels);
inline TransportDecorator transport_decorator = nullptr;

}  // namespace rondo::comm
