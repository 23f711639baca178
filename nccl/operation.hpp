// One collective or message as its call gave it, and how operations run on rondo's communicators.
#pragma once

#include <span>

#include "nccl/comm.hpp"

namespace rondo::nccl {

struct NcclCall {
  Comm comm;
  const char* name;  // the function's, for errors
  enum class CallKind : uint8_t { kCollective, kSend, kRecv } kind;
  Call call;  // of a message: in is sent, out is received, and the peer is the root
  CallOptions options;
};

/// Runs it. Host memory: returns when the result is there. A device: when it is on its stream.
/// Locks the communicator.
Status run(const NcclCall& operation);

/// Runs them as one group: in the order of the calls on each communicator, and beside each other on
/// different ones. If one is refused, none runs.
Status run(std::span<const NcclCall> operations);

/// Their predicted time: of the communicator that takes longest. Messages count nothing.
Result<double> predict_us(std::span<const NcclCall> operations);

}  // namespace rondo::nccl
