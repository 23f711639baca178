#include "comm/tuner/default_profile.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "comm/tuner/profile_file.hpp"

namespace rondo::tuner {

namespace {

/// The first value of `field` in /proc/cpuinfo, or empty.
std::string cpu_field(std::string_view field) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.rfind(field, 0) != 0) continue;
    if (line.find_first_not_of(" \t", field.size()) != colon) continue;
    const size_t begin = line.find_first_not_of(' ', colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

/// "amd-epyc-25-1": the model's name, and its family and model because hypervisors shorten names.
std::string processor() {
  std::string slug;
  for (const std::string_view field :
       {"model name", "cpu family", "model", "CPU implementer", "CPU part"}) {
    bool separated = false;
    for (const char c : cpu_field(field)) {
      const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'Z';
      if (!digit && !upper && (c < 'a' || c > 'z')) {
        separated = false;
        continue;
      }
      if (!separated && !slug.empty()) slug += '-';
      separated = true;
      slug += static_cast<char>(upper ? c - 'A' + 'a' : c);
    }
  }
  return slug.empty() ? "unknown" : slug;
}

std::string config_home() {
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  if (xdg != nullptr && *xdg == '/') return xdg;  // a relative one is to be ignored, says XDG
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.config" : std::string();
}

}  // namespace

std::string default_profile_path() {
  const std::string home = config_home();
  return home.empty() ? home : home + "/rondo/links-" + processor() + ".json";
}

Result<LinkProfile> find_profile(const std::string& path, LinkProfile built_in) {
  if (path == kBuiltIn) return built_in;
  if (!path.empty()) return read_profile(path);
  const std::string calibrated = default_profile_path();
  std::error_code ignored;
  if (calibrated.empty() || !std::filesystem::exists(calibrated, ignored)) return built_in;
  auto read = read_profile(calibrated);
  if (read.ok()) return read;
  return Status(read.status().code(),
                read.status().message() +
                    "; rondo reads this file because it lies there: remove it, run rondo-perf "
                    "--calibrate, or set RONDO_LINKS=" +
                    kBuiltIn);
}

}  // namespace rondo::tuner
