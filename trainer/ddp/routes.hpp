// By which communicators a rank's data reach the others.
#pragma once

#include <string>

#include "rondo/communicator.hpp"
#include "trainer/ddp/gpu.hpp"

namespace rondo::ddp {

/// Borrowed.
struct Routes {
  Communicator& data;  // parameters, gradients and buffers
  Communicator& host;  // headers, used maps and agreement; without a GPU the same one
  Gpu* gpu;            // where `data` is on a device; else null

  void abort(const std::string& reason) const {
    data.abort(reason);
    if (&host != &data) host.abort(reason);
  }
};

}  // namespace rondo::ddp
