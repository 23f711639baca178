// See launch.hpp.
#include "bench/harness/launch.hpp"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace rondo::bench {
namespace {

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

Result<int> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  int value = 0;
  const char* end = text == nullptr ? nullptr : text + std::strlen(text);
  if (text == nullptr || std::from_chars(text, end, value).ptr != end || text == end) {
    return Status(Code::kInvalidArgument,
                  std::string(variable) + " is '" + (text ? text : "(unset)") +
                      "', not a number: a launcher sets it together with the world size");
  }
  return value;
}

/// What a launcher calls the four numbers.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},  // rondo-run, torchrun
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},  // MPICH
};

}  // namespace

Result<std::optional<Place>> place_from_environment() {
  for (const Names& names : kLaunchers) {
    if (std::getenv(names.rank) == nullptr && std::getenv(names.size) == nullptr) continue;
    auto rank = number_of(names.rank);
    if (!rank.ok()) return rank.status();
    auto size = number_of(names.size);
    if (!size.ok()) return size.status();
    Place place{.rank = *rank, .size = *size, .local_rank = *rank, .local_size = *size};
    if (auto local = number_of(names.local_rank); local.ok()) place.local_rank = *local;
    if (auto local = number_of(names.local_size); local.ok()) place.local_size = *local;
    return std::optional<Place>(place);
  }
  return std::optional<Place>();
}

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
