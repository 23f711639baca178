// The status of a call that is wrong in itself: nothing has moved.
#pragma once

#include <string>
#include <utility>

#include "rondo/status.hpp"

namespace rondo::comm {

inline Status refuse(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

}  // namespace rondo::comm
