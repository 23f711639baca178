// A process's environment as a launcher would leave it, for tests.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rondo {

/// Whatever a launcher of these families may have set.
inline const char* const kPrefixes[] = {
    "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "RONDO_", "TORCH",           "OMPI_",
    "PMIX_", "PMI_",        "MPI_",   "PALS_",   "SLURM_", "XDG_RUNTIME_DIR="};

using Variables = std::map<std::string, std::string>;

/// Of "A=1 B='with spaces' C=", as in a shell. Of two values of a variable, the later one.
inline Variables variables(std::string_view words) {
  Variables all;
  while (!words.empty()) {
    const size_t name = words.find('=');
    const bool is_quoted = words.substr(name + 1, 1) == "'";
    const size_t begin = name + (is_quoted ? 2 : 1);
    const size_t end = std::min(words.find(is_quoted ? '\'' : ' ', begin), words.size());
    all[std::string(words.substr(0, name))] = words.substr(begin, end - begin);
    words.remove_prefix(std::min(words.find_first_not_of("' ", end), words.size()));
  }
  return all;
}

/// Exactly these variables, of those that count, while it lives.
class Environment {
 public:
  explicit Environment(const std::string& words) {
    clear();
    for (const auto& [name, value] : variables(words)) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { clear(); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void clear() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      for (const char* prefix : kPrefixes) {
        if (text.starts_with(prefix)) names.push_back(text.substr(0, text.find('=')));
      }
    }
    for (const std::string& name : names) unsetenv(name.c_str());
  }
};

}  // namespace rondo
