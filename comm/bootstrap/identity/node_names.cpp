// See node_names.hpp.
#include "comm/bootstrap/identity/node_names.hpp"

#include <cstdint>
#include <sstream>

namespace rondo::comm {

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t close = list.find(']', at);
    if (close == std::string::npos) return {};
    host += list.substr(at + 1, list.find_first_of("-,]", at) - at - 1);
    at = close + 1;
  }
  return host;
}

std::vector<std::string> contact_addresses(const std::string& contact) {
  std::vector<std::string> addresses;
  std::istringstream parts(contact);
  for (std::string part; std::getline(parts, part, ';');) {
    const size_t scheme = part.find("://"), port = part.rfind(':');
    if (scheme == std::string::npos || port <= scheme) continue;
    std::istringstream list(part.substr(scheme + 3, port - scheme - 3));
    for (std::string address; std::getline(list, address, ',');) {
      std::erase_if(address, [](char c) { return c == '[' || c == ']'; });
      if (address.empty() || address == "::1" || address.starts_with("127.")) continue;
      addresses.push_back(address);
    }
  }
  return addresses;
}

int port_for(const std::string& job, int first, int last) {
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return first + static_cast<int>(hash % static_cast<unsigned>(last - first + 1));
}

}  // namespace rondo::comm
