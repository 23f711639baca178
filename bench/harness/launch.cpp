// See launch.hpp.
#include "bench/harness/launch.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace rondo::bench {
namespace {

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

Result<TemporaryDirectory> TemporaryDirectory::create() {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "rondo-perf-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return Status(Code::kSystem, errno_text("cannot make a temporary directory like " + path));
  }
  return TemporaryDirectory(path);
}

TemporaryDirectory::TemporaryDirectory(TemporaryDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

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
                errno_text("cannot start '" + launcher + "', which starts the ranks"));
}

}  // namespace rondo::bench
