// Operators made at run time: sums of inputs that each rank scales by a factor of its own.
#pragma once

#include "nccl/comm.hpp"

namespace rondo::nccl {

/// The type with NCCL's number.
Result<DataType> read_type(ncclDataType_t type, const char* call);

struct ReadOperator {
  ReduceOp op;
  double factor = 1;
};

/// The operator with NCCL's number, on this communicator and type. `stream`: that of the call.
Result<ReadOperator> read_operator(ncclRedOp_t op, DataType type, ncclComm& comm, void* stream,
                                   const char* call);

/// A factor stored in that type, as a double. kUnavailable: an integer that a double does not hold.
Result<double> decode_factor(const void* bytes, DataType type);

}  // namespace rondo::nccl
