// Files and texts that rondo-plan writes.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace rondo::plan::test {

inline std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline size_t occurrences(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace rondo::plan::test
