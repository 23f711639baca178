// ncclGroupStart to ncclGroupEnd: what one thread collects, of any number of communicators.
#pragma once

#include <functional>
#include <vector>

#include "nccl/operation.hpp"

namespace rondo::nccl {

/// A communicator that is to be created by `create`, which blocks. Creations from one `parent`
/// follow each other in the order of their calls.
struct CommCreation {
  Comm comm;    // null: this rank takes part and gets none
  Comm parent;  // null: none
  std::function<Result<std::optional<Communicator>>()> create;
};

/// Whether this thread is between ncclGroupStart and ncclGroupEnd.
bool in_group();

/// Runs the operation, or keeps it for the end of this thread's group. A failure spoils the group.
Status submit(Result<NcclCall> operation);

/// Creates, or keeps it for the end of the group. ncclInProgress where the communicator does not
/// block: then it is created in the background.
ncclResult_t submit(std::vector<CommCreation> creations);

/// The same of a failure before anything could be submitted.
ncclResult_t spoil(const Status& status);

}  // namespace rondo::nccl
