// What several tests of the meeting need.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "comm/bootstrap/environment.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {

inline comm::Identity identity(int rank, int world_size, const testing::TempDirectory& place,
                               const std::string& secret = "s3cret") {
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .local_world_size = world_size,
          .rendezvous = place.path(),
          .secret = secret};
}

/// Rank 0 opens one for each rank of another process that it has let in: how a test knows who has
/// come.
inline int count_pidfds(pid_t pid) {
  int pidfds = 0;
  const std::string table = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(table)) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry, ignored);
    if (target.find("pidfd") != std::string::npos) ++pidfds;
  }
  return pidfds;
}

}  // namespace rondo
