// What an agent, or a shell on a host, prints beside the frames: lines that can be shown on a
// terminal. Bounded, whatever comes: a line ends after kLongest bytes with a marker, and the rest of
// it is dropped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::run {

class AgentLines {
 public:
  static constexpr size_t kLongest = 4096;
  static constexpr std::string_view kCut = " [the rest of this line is left out]";

  void feed(std::string_view bytes);
  /// The end: what is left becomes a line.
  void finish();
  /// The lines that are complete, each with its end and without control characters.
  std::vector<std::string> take();

 private:
  void end_line();

  std::string partial_;  // kLongest + 1 bytes at most
  std::vector<std::string> lines_;
};

}  // namespace rondo::run
