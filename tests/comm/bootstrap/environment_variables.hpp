// A process's environment as a launcher would leave it, for tests.
#pragma once

#include <unistd.h>

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

/// Exactly these variables, of those that count, while it lives.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
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
