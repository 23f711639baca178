// See launch.hpp.
#include "bench/harness/launch.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

namespace rondo::bench {

Status start_ranks(int ranks, char** argv, const std::string& collective) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Code::kSystem, "cannot find this program's file: " + error.message());
  const std::string launcher = self.parent_path() / "rondo-run";
  std::vector<std::string> words = {launcher, "--no-prefix", "-n", std::to_string(ranks),
                                    "--",     self};
  if (!collective.empty()) words.push_back(collective);
  for (char** argument = argv + 1; *argument != nullptr; ++argument) words.emplace_back(*argument);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(launcher.c_str(), pointers.data());
  return Status(Code::kSystem,
                "cannot start '" + launcher + "', which starts the ranks: " + std::strerror(errno));
}

}  // namespace rondo::bench
