// Which process a rank is: a number means another process in every PID namespace, so that it is only
// looked up where /proc shows the same one.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace rondo::base {

/// The inode of this process's PID namespace; 0: /proc does not say.
inline uint32_t own_pid_namespace() {
  struct stat facts {};
  return stat("/proc/self/ns/pid", &facts) == 0 ? static_cast<uint32_t>(facts.st_ino) : 0;
}

/// Whether /proc has the processes of that namespace, under the numbers that they have there.
inline bool proc_shows(uint32_t pid_namespace) {
  if (pid_namespace == 0 || pid_namespace != own_pid_namespace()) return false;
  char self[16] = {};  // /proc may be mounted from another namespace
  return readlink("/proc/self", self, sizeof self - 1) > 0 && std::atoi(self) == getpid();
}

}  // namespace rondo::base
