// The processes above this one, and with which environment they were started (Linux's /proc).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace rondo::comm {

struct ProcessAbove {
  std::string name;
  pid_t parent = 0;
};

/// Nothing: /proc does not show it.
std::optional<ProcessAbove> read_process(pid_t pid);

/// Whether its initial environment has all of `entries`, "NAME=VALUE". That of another user's process
/// is not readable.
bool was_started_with(pid_t pid, const std::vector<std::string>& entries);

}  // namespace rondo::comm
