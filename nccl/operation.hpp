// One collective or message as its call gave it, and how operations run on rondo's communicators.
#pragma once

#include <span>

#include "nccl/comm.hpp"

namespace rondo::nccl {

struct NcclCall {
  Comm comm;
  const char* call;  // the function's name, for errors
  enum class CallKind : uint8_t { kCollective, kSend, kRecv } kind;
  Collective collective;  // of a collective
  const void* in;         // also what is sent
  void* out;              // also what is received into
  size_t count;
  DataType type;
  ReduceOp op;
  int root;  // or the message's peer
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
