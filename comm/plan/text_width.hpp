// How wide a text is in a picture: by the font's own table, because nobody measures text when an
// SVG document is written. DejaVu Sans is among the widest fonts that viewers use for sans-serif
// text, so what fits in it fits in others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rondo::plan {

enum class Weight { kRegular, kBold };

/// In pixels, in DejaVu Sans of that size, without kerning. Characters outside ASCII count as one
/// em, which is wider than any that rondo draws.
double text_width(std::string_view text, double size, Weight weight = Weight::kRegular);

/// The text in lines no wider than `width`, broken at spaces; a longer word has a line of its own.
std::vector<std::string> wrapped(const std::string& text, double size, double width);

}  // namespace rondo::plan
