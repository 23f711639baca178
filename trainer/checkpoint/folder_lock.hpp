// One run at a time saves into a folder: two would remove each other's unfinished checkpoints.
#pragma once

#include <chrono>
#include <string>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// What dies, or has been killed, may hold it so long.
inline constexpr std::chrono::seconds kLockPatience{2};

/// internal::Holds FOLDER/.lock until this thread ends, or its process, however. kUnavailable, naming its
/// process, where another holds it and still does after `patience`. Ok where the file system has no
/// locks, and for a folder that this thread holds.
Status lock_folder(const std::string& folder, std::chrono::milliseconds patience);

}  // namespace rondo::trainer
