// A profile of links on which nothing costs anything but what a test wants.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace rondo::testing {

/// Writes it to `path`, which it returns: for Config::links and RONDO_LINKS.
inline std::string write_links(const std::string& path, const std::map<std::string, double>& dear) {
  using nlohmann::json;
  json constants;
  for (const char* name : {"overhead_us", "alpha_us", "peer_us", "slot_us_per_byte",
                           "one_way_us_per_byte", "memory_cached_us_per_byte", "memory_us_per_byte",
                           "reduce_us_per_byte", "process_copy_us", "process_copy_us_per_byte"}) {
    constants[name] = dear.contains(name) ? dear.at(name) : 0;
  }
  const json machine = {
      {"parallel_ranks", 0}, {"llc_bytes", 1048576}, {"slot_bytes", 4096}, {"slots", 4}};
  const json corrections = {{"ranks", 3}, {"tables", json::array()}};
  std::ofstream(path) << json{
      {"format", "rondo link profile"}, {"version", 2},       {"name", "made up"},
      {"constants", constants},         {"machine", machine}, {"corrections", corrections}};
  return path;
}

}  // namespace rondo::testing
