// See agent_lines.hpp.
#include "comm/launch/agent_lines.hpp"

#include <algorithm>
#include <utility>

#include "comm/base/printable.hpp"

namespace rondo::run {

void AgentLines::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    // One byte beyond the longest says that there were more.
    partial_ += part.substr(0, kLongest + 1 - std::min(partial_.size(), kLongest + 1));
    if (end == std::string_view::npos) return;
    end_line();
    bytes.remove_prefix(end + 1);
  }
}

void AgentLines::finish() {
  if (!partial_.empty()) end_line();
}

std::vector<std::string> AgentLines::take() { return std::exchange(lines_, {}); }

void AgentLines::end_line() {
  const bool is_cut = partial_.size() > kLongest;
  if (!is_cut && partial_.ends_with('\r')) partial_.pop_back();  // as ssh ends its lines
  std::string line = base::printable(partial_, kLongest);
  if (is_cut) line += kCut;
  lines_.push_back(line + "\n");
  partial_.clear();
}

}  // namespace rondo::run
