// See agent_lines.hpp.
#include "comm/launch/agent_lines.hpp"

#include "comm/base/printable.hpp"

namespace rondo::run {

void AgentLines::add(std::string_view line) {
  line.remove_suffix(1);
  const bool is_cut = line.size() > kLongest;
  if (!is_cut && line.ends_with('\r')) line.remove_suffix(1);  // as ssh ends its lines
  lines_.push_back(base::printable(line, kLongest).append(is_cut ? kCut : "") + "\n");
}

}  // namespace rondo::run
