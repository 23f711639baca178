#include "comm/topology/cpus.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "kernels/host/cpu_mask.hpp"

namespace rondo::topology {
namespace {

/// Where a hierarchy of control groups is mounted, and which of its groups is seen there.
struct Mount {
  std::string point, group;
};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// The mount with the CPU controller of version 2, or 1.
std::optional<Mount> find_mount(const std::string& root, bool version_2) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string skipped, type, source, options;
    Mount mount;
    fields >> skipped >> skipped >> skipped >> mount.group >> mount.point;
    while (fields >> skipped && skipped != "-") {
    }
    fields >> type >> source >> options;
    if (type == (version_2 ? "cgroup2" : "cgroup") && (version_2 || has_word(options, "cpu"))) {
      return mount;
    }
  }
  return std::nullopt;
}

/// CPUs' worth of time that one group grants, or infinity.
double quota_of(const std::string& group, bool version_2) {
  std::string quota;
  double period = 0;
  if (version_2) {
    std::ifstream(group + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group + "/cpu.cfs_period_us") >> period;
  }
  const double time = std::strtod(quota.c_str(), nullptr);  // "max", "-1": no limit
  return time > 0 && period > 0 ? time / period : INFINITY;
}

/// The least quota from `group` up to what is mounted.
double least_quota(const std::string& root, std::string group, bool version_2) {
  const auto mount = find_mount(root, version_2);
  if (!mount) return INFINITY;
  // A container may see its own group mounted as the root.
  if (mount->group != "/") {
    const bool is_below = (group + "/").starts_with(mount->group + "/");
    group = is_below ? group.substr(mount->group.size()) : "";
  }
  double least = INFINITY;
  for (std::filesystem::path at = group;; at = at.parent_path()) {
    const std::string below = at == "/" ? "" : at.string();
    least = std::min(least, quota_of(root + mount->point + below, version_2));
    if (below.empty()) return least;
  }
}

}  // namespace

int count_cpus(std::span<const std::string> masks) {
  std::string all;
  for (const std::string& mask : masks) {
    all.resize(std::max(all.size(), mask.size()), '\0');
    for (size_t i = 0; i < mask.size(); ++i) all[i] = static_cast<char>(all[i] | mask[i]);
  }
  return kernels::count_cpus(all);
}

int granted_cpus(const std::string& root) {
  double least = INFINITY;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:group
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_word(controllers, "cpu")) continue;
    least = std::min(least, least_quota(root, line.substr(second + 1), controllers.empty()));
  }
  return least < INT_MAX ? std::max(1, static_cast<int>(std::ceil(least))) : INT_MAX;
}

}  // namespace rondo::topology
