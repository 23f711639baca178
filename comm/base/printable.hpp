// Texts cut to a length, and those that another process has sent, as far as they may end up on a
// terminal.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <string_view>

namespace rondo::base {

/// The characters of UTF-8 that are whole in the first `most` bytes of `text`. Other bytes are cut
/// where they are.
inline std::string_view whole_characters(std::string_view text, size_t most) {
  std::string_view kept = text.substr(0, most);
  if (kept.size() == text.size()) return kept;
  // A first byte has as many ones in front as its character has bytes, and 0 for one; others have one.
  for (size_t last = 1; last < 4 && last <= kept.size(); ++last) {
    const auto byte = static_cast<unsigned char>(kept[kept.size() - last]);
    const auto bytes = static_cast<size_t>(std::countl_one(byte));
    if (bytes == 1) continue;
    if (bytes > last) kept.remove_suffix(last);
    break;
  }
  return kept;
}

/// The characters in the first `most` bytes of `text`, with '?' for every control character.
inline std::string printable(std::string_view text, size_t most) {
  std::string shown(whole_characters(text, most));
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return shown;
}

}  // namespace rondo::base
