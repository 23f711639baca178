// Only rank 0 of a communicator keeps its board's descriptor open; the others have it mapped. So
// boards are looked for among descriptors first, and those that are only mapped by their inode.
#include "comm/status/find.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace rondo::status {
namespace {

namespace fs = std::filesystem;
using transport::UniqueFd;

/// What /proc calls a board.
const std::string kLink = std::string("/memfd:") + kBoardName;

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  return entries;
}

std::vector<int> with_descendants(int pid) {
  std::vector<int> pids{pid};
  for (size_t i = 0; i < pids.size(); ++i) {
    for (const fs::path& task : entries_of(fmt::format("/proc/{}/task", pids[i]))) {
      std::ifstream children(task / "children");
      for (int child = 0; children >> child;) pids.push_back(child);
    }
  }
  return pids;
}

/// Adds the boards among the open descriptors of `pid`; those of `only`, unless that is empty.
void add_open_boards(int pid, const std::set<uint64_t>& only, std::vector<MappedBoard>& boards) {
  for (const fs::path& link : entries_of(fmt::format("/proc/{}/fd", pid))) {
    std::error_code error;
    if (!fs::read_symlink(link, error).string().starts_with(kLink)) continue;
    auto board = MappedBoard::open(UniqueFd(::open(link.c_str(), O_RDONLY | O_CLOEXEC)));
    if (!board.ok() || (!only.empty() && !only.contains(board->id()))) continue;
    const bool known = std::any_of(boards.begin(), boards.end(),
                                   [&](const MappedBoard& b) { return b.id() == board->id(); });
    if (!known) boards.push_back(std::move(*board));
  }
}

/// Inodes of the boards that `pid` has mapped.
std::set<uint64_t> mapped_inodes(int pid) {
  std::set<uint64_t> inodes;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (line.find(kLink) == std::string::npos) continue;
    std::istringstream fields(line);
    std::string range, mode, offset, device;
    uint64_t inode = 0;
    if (fields >> range >> mode >> offset >> device >> inode) inodes.insert(inode);
  }
  return inodes;
}

std::vector<int> processes_of_user() {
  std::vector<int> pids;
  for (const fs::path& entry : entries_of("/proc")) {
    const int pid = std::atoi(entry.filename().c_str());
    struct stat facts {};
    if (pid > 0 && ::stat(entry.c_str(), &facts) == 0 && facts.st_uid == ::geteuid()) {
      pids.push_back(pid);
    }
  }
  return pids;
}

}  // namespace

std::vector<std::string> launcher_directories(int pid) {
  // This shell's idea of the runtime directory need not be that of the job's.
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::set<std::string> bases{runtime != nullptr ? runtime : "/tmp",
                                    fmt::format("/run/user/{}", ::geteuid()), "/tmp"};
  const std::string prefix =
      pid == 0 ? std::string("rondo-run-") : fmt::format("rondo-run-{}-", pid);
  std::vector<std::string> found;
  for (const std::string& base : bases) {
    for (const fs::path& entry : entries_of(base)) {
      if (entry.filename().string().starts_with(prefix)) found.push_back(entry);
    }
  }
  return found;
}

Result<std::vector<MappedBoard>> boards_of_process(int pid) {
  std::vector<MappedBoard> boards;
  const std::vector<int> family = with_descendants(pid);
  for (const int member : family) add_open_boards(member, {}, boards);
  std::set<uint64_t> wanted;
  for (const int member : family) wanted.merge(mapped_inodes(member));
  for (const MappedBoard& board : boards) wanted.erase(board.id());
  if (!wanted.empty()) {
    for (const int other : processes_of_user()) add_open_boards(other, wanted, boards);
  }
  if (!boards.empty()) return boards;
  if (!fs::exists(fmt::format("/proc/{}", pid))) {
    return Status(Code::kUnavailable, fmt::format("there is no process {}", pid));
  }
  return Status(Code::kUnavailable,
                fmt::format("neither process {} nor a child of it has a communicator of rondo, or "
                            "it is another user's",
                            pid));
}

}  // namespace rondo::status
