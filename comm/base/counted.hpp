// Numbers of things, for people.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace rondo::comm {

/// "1 rank", "2 ranks".
template <std::integral Number>
std::string counted(Number count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace rondo::comm
