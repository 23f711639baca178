// Finding jobs and boards from outside: the launchers' sockets of this user, and, for ranks that
// another launcher has started, the descriptors that /proc shows.
#pragma once

#include <string>
#include <vector>

#include "comm/status/socket.hpp"

namespace rondo::status {

/// The directories of this user in which rondo-run may listen; `pid` 0: any rondo-run, else that
/// one.
std::vector<std::string> launcher_directories(int pid = 0);

/// The boards that process `pid` or its descendants belong to. Needs no launcher and no rank to
/// answer. Errors: kUnavailable, there are none.
Result<std::vector<MappedBoard>> boards_of_process(int pid);

}  // namespace rondo::status
