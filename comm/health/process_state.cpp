// Linux: /proc/PID/stat.
#include "comm/health/process_state.hpp"

#include <fstream>

namespace rondo::board {

std::string process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t paren = line.rfind(')');
  if (paren == std::string::npos || paren + 2 >= line.size()) return "";
  switch (line[paren + 2]) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in an uninterruptible sleep";
    case 'T':
      return "stopped by a signal";
    case 't':
      return "stopped by a debugger";
    case 'Z':
      return "a zombie";
    default:
      return "";
  }
}

}  // namespace rondo::board
