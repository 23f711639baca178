// How communicators come to be: by a unique id, in one call or as part of a group.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "nccl/group.hpp"
#include "nccl/settings.hpp"

namespace rondo::nccl {

/// How long ranks wait for each other while they create a communicator. NCCL waits for ever.
inline constexpr std::chrono::minutes kPatience{10};

/// How long those that are left after a failure wait for ranks that have not ended and do not come.
inline constexpr std::chrono::seconds kRegroupPatience{30};

struct IdMeeting {
  std::string id;  // of rondo::make_unique_id()
  int rank, size, device;
  std::chrono::seconds patience = kPatience;
  int max_channels = 0;  // Config's
};

/// Meets the other ranks. Blocks.
Result<std::optional<Communicator>> meet(const IdMeeting& meeting);

/// A fresh id.
Status write_id(ncclUniqueId& into);
/// The text of one. An error: it is empty, as one that was not broadcast.
Result<std::string> read_id(const ncclUniqueId& id, const char* call);

/// The device of this thread, on which a communicator is created; -1: host memory.
Result<int> this_device();

/// Writes the handles and creates, now, in the background, or at the end of the thread's group.
/// After a failure the handles are null.
ncclResult_t begin(std::vector<CommCreation> creations, ncclComm_t* handles);
ncclResult_t begin(Result<CommCreation> creation, ncclComm_t* handle);

}  // namespace rondo::nccl
