// What a process holds that belongs to communicators: to show that a destroyed one leaves nothing.
#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include "tests/harness/rank_group.hpp"

namespace rondo::testing {

/// "/tmp/x", "socket:[17]", "anon_inode:[pidfd]": of a process's descriptors, with their numbers.
inline std::set<std::string> descriptors(const std::string& process = "self") {
  std::set<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + process + "/fd")) {
    std::error_code closed;  // the directory's own
    const std::string target = std::filesystem::read_symlink(entry.path(), closed);
    if (!closed) all.insert(entry.path().filename().string() + " " + target);
  }
  return all;
}

/// The names of shared memory that this process maps.
inline std::multiset<std::string> shared_mappings() {
  std::multiset<std::string> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    for (const char* kind : {"/memfd:", "/dev/shm", "/SYSV"}) {
      if (const size_t at = line.find(kind); at != std::string::npos) all.insert(line.substr(at));
    }
  }
  return all;
}

inline size_t threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

/// A process before its first communicator and after its last one. Fails the rank, by expect().
class Leftovers {
 public:
  /// `lacked_descriptors`: then UCX 1.13 may keep its thread, with a pipe and an event set, when it has
  /// ended everything else.
  void check(bool lacked_descriptors = false) const {
    std::string more;
    const bool may_be_ucx = lacked_descriptors && threads() == threads_ + 1;
    for (const std::string& one : descriptors()) {
      const bool is_ucx = may_be_ucx && (one.find(" pipe:") != std::string::npos ||
                                         one.find("[eventpoll]") != std::string::npos);
      if (!descriptors_.contains(one) && !is_ucx) more += ", descriptor " + one;
    }
    for (const std::string& one : shared_mappings()) {
      if (!mappings_.contains(one)) more += ", mapping " + one;
    }
    if (kCountsThreads && threads() != threads_ && !may_be_ucx)
      more += ", " + std::to_string(threads()) + " threads";
    expect(more.empty(), "left over" + more);
  }

 private:
#ifdef __SANITIZE_THREAD__
  static constexpr bool kCountsThreads = false;  // TSan starts one of its own with the first
#else
  static constexpr bool kCountsThreads = true;
#endif
  std::set<std::string> descriptors_ = descriptors();
  std::multiset<std::string> mappings_ = shared_mappings();
  size_t threads_ = threads();
};

}  // namespace rondo::testing
