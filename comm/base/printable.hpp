// Texts that another process has sent, as far as they may end up on a terminal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace rondo::base {

/// The first `most` bytes of `text`, with '?' for every control character.
inline std::string printable(std::string_view text, size_t most) {
  std::string shown(text.substr(0, most));
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return shown;
}

}  // namespace rondo::base
