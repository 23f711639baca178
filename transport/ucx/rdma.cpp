#include "transport/ucx/rdma.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace rondo::transport::ucx {
namespace {

namespace fs = std::filesystem;

/// In the order of their names; none where there is no such directory.
std::vector<fs::path> entries_of(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  std::ranges::sort(entries);
  return entries;
}

/// The file says "4: ACTIVE".
bool is_active(const fs::path& port) {
  std::string number, state;
  std::ifstream(port / "state") >> number >> state;
  return state == "ACTIVE";
}

}  // namespace

bool has_rdma() { return !entries_of(kRdmaDevices).empty(); }

std::string with_rdma(const std::string& interface, bool all_devices, const std::string& devices) {
  std::string names = interface;
  if (interface.empty()) return names;
  for (const fs::path& device : entries_of(devices)) {
    std::error_code error;
    if (!all_devices && !fs::exists(device / "device/net" / interface, error)) continue;
    for (const fs::path& port : entries_of(device / "ports")) {
      if (!is_active(port)) continue;
      names += "," + device.filename().string() + ":" + port.filename().string();
    }
  }
  return names;
}

bool is_tcp_only(const std::string& names) {
  if (names.empty() || names == "all") return !has_rdma();
  std::error_code error;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    if (!fs::exists("/sys/class/net/" + name, error)) return false;
  }
  return true;
}

}  // namespace rondo::transport::ucx
