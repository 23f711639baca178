// rondo's own logger (an embedded library must not use the application's): to stderr or to the
// callback of rondo/log.hpp.
#pragma once

#include <fmt/format.h>

#include <string>

#include "rondo/log.hpp"

namespace rondo::comm {

void log(LogLevel level, const std::string& message);

}  // namespace rondo::comm
