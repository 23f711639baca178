// See folder_lock.hpp.
#include "trainer/checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <thread>

#include "trainer/files/disk.hpp"

namespace rondo::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// 0, or the error.
int lock(int file, Clock::time_point until) {
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || Clock::now() >= until) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}

/// A thread's: a rank may be one, in a program that then has others.
struct Held {
  Held() = default;
  ~Held() {
    for (const auto& [folder, file] : files) close(file);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  std::map<std::string, int> files;  // by folder
};

/// Into the lock's file: for the error of others.
void sign(int file) {
  char host[256] = {};
  (void)gethostname(host, sizeof host - 1);
  if (ftruncate(file, 0) == 0) dprintf(file, "process %ld on %s", long{getpid()}, host);
}

}  // namespace

Status lock_folder(const std::string& folder, std::chrono::milliseconds patience) {
  thread_local Held held;
  if (held.files.contains(folder)) return {};
  const std::string path = folder + "/.lock";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return {};
  const int error = lock(file, Clock::now() + patience);
  if (error == 0) {
    sign(file);
    held.files[folder] = file;
    return {};
  }
  close(file);
  if (error != EWOULDBLOCK) return {};
  const Result<std::string> holder = read_text_file(path);
  return Status(Code::kUnavailable,
                "another run saves checkpoints into '" + folder + "'" +
                    (holder.ok() && !holder->empty() ? ", " + *holder : std::string()) +
                    ": wait for its end, or name another folder");
}

}  // namespace rondo::trainer
