// Command lines as words.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace rondo::trainer::testing {

using Words = std::vector<std::string>;

/// Cut at spaces.
inline Words words_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}
/// The same: "--ranks 2 --width 32"_words.
inline Words operator""_words(const char* text, size_t) { return words_of(text); }
inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
/// One word more, as a path or a number: "--ranks"_words + 2.
inline Words operator+(Words words, const std::string& word) {
  words.push_back(word);
  return words;
}
template <class T>
requires std::is_integral_v<T> Words operator+(Words words, T number) {
  return std::move(words) + std::to_string(number);
}

}  // namespace rondo::trainer::testing
