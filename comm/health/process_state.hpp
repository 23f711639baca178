// What the kernel says that a process is doing. Knows no ranks.
#pragma once

#include <string>

namespace rondo::board {

/// "running", "sleeping", "stopped by a signal", "a zombie", ...; empty where the kernel does not
/// say, as when there is no such process.
std::string process_state(int pid);

}  // namespace rondo::board
