// What an agent, or a shell on a host, prints beside the frames: lines that can be shown on a
// terminal. Bounded, whatever comes: a line ends after kLongest bytes with a marker, and the rest of
// it is dropped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/launch/output_lines.hpp"

namespace rondo::run {

class AgentLines {
 public:
  static constexpr size_t kLongest = 4096;
  static constexpr std::string_view kCut = " [the rest of this line is left out]";

  AgentLines() = default;
  AgentLines(const AgentLines&) = delete;
  AgentLines& operator=(const AgentLines&) = delete;
  void feed(std::string_view bytes) { cutter_.feed(bytes); }
  /// The end: what is left becomes a line.
  void finish() { cutter_.finish(); }
  /// The lines that are complete, each with its end and without control characters.
  std::vector<std::string> take() { return std::exchange(lines_, {}); }

 private:
  void add(std::string_view line);

  std::vector<std::string> lines_;
  LineCutter cutter_{{.longest = kLongest, .drops_rest = true},
                     [this](std::string_view line) { add(line); }};
};

}  // namespace rondo::run
