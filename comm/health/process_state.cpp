// Linux: /proc/PID/stat.
#include "comm/health/process_state.hpp"

#include <fstream>
#include <map>

namespace rondo::board {

std::string process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t paren = line.rfind(')');
  if (paren == std::string::npos || paren + 2 >= line.size()) return "";
  static const std::map<char, const char*> words = {{'R', "running"},
                                                    {'S', "sleeping"},
                                                    {'D', "in an uninterruptible sleep"},
                                                    {'T', "stopped by a signal"},
                                                    {'t', "stopped by a debugger"},
                                                    {'Z', "a zombie"}};
  const auto found = words.find(line[paren + 2]);
  return found == words.end() ? "" : found->second;
}

}  // namespace rondo::board
