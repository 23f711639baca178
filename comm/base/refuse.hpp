// The status of a call that is wrong in itself: nothing has moved.
#pragma once

#include <string>
#include <utility>

#include "comm/base/this_process.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

inline Status refuse(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

/// Of a call on a forked child's copy of something that `owner` has made.
inline Status refuse_copy(const std::string& what, const base::OwnProcess& owner) {
  return refuse("this " + what + " belongs to process " + std::to_string(owner.pid) +
                ", and process " + std::to_string(base::this_process.pid) +
                " is its forked child: create a communicator in the child, or start ranks that are "
                "not forked, as rondo-run does");
}

}  // namespace rondo::comm
