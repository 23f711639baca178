// See ancestors.hpp.
#include "comm/bootstrap/identity/ancestors.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace rondo::comm {

std::optional<ProcessAbove> read_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), {});
  // "pid (name) state parent ...": a name may hold spaces and parentheses.
  const size_t open = stat.find('('), close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessAbove process{.name = stat.substr(open + 1, close - open - 1)};
  std::istringstream rest(stat.substr(close + 1));
  char state = 0;
  if (!(rest >> state >> process.parent)) return std::nullopt;
  return process;
}

bool was_started_with(pid_t pid, const std::vector<std::string>& entries) {
  std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
  size_t found = 0;
  for (std::string each; std::getline(environment, each, '\0');) {
    if (std::ranges::find(entries, each) != entries.end()) ++found;
  }
  return found >= entries.size();
}

}  // namespace rondo::comm
