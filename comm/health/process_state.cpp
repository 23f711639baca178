// Linux: /proc/PID/stat.
#include "comm/health/process_state.hpp"

#include <fstream>
#include <map>

namespace rondo::board {

char process_letter(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t paren = line.rfind(')');
  return paren == std::string::npos || paren + 2 >= line.size() ? '\0' : line[paren + 2];
}

std::string words_of(char letter) {
  static const std::map<char, const char*> words = {{'R', "running"},
                                                    {'S', "sleeping"},
                                                    {'D', "in an uninterruptible sleep"},
                                                    {'T', "stopped by a signal"},
                                                    {'t', "stopped by a debugger"},
                                                    {'Z', "a zombie"}};
  const auto found = words.find(letter);
  return found == words.end() ? "" : found->second;
}

std::string process_state(int pid) { return words_of(process_letter(pid)); }

}  // namespace rondo::board
