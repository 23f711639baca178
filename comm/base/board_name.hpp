// How a process is seen to be a rank: it has a board of this name open or mapped.
#pragma once

namespace rondo::base {

/// The name under which boards stand in /proc.
inline constexpr const char* kBoardName = "rondo-board";

}  // namespace rondo::base
