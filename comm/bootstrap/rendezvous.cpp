// Private directories, locks and sockets on the file system.
#include "comm/bootstrap/rendezvous.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "comm/bootstrap/connection.hpp"

namespace rondo::comm {
namespace {

using transport::UniqueFd;

/// The directory, or nothing where it does not exist. Everything later goes through the descriptor,
/// so what was checked here is what is used.
Result<std::optional<UniqueFd>> open_private_directory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::optional<UniqueFd>();
    return system_status("cannot open the rendezvous directory " + path, errno);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return system_status("fstat " + path, errno);
  if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", info.st_mode & 07777u);
    return Status(Code::kBootstrap, "the rendezvous directory " + path + " belongs to uid " +
                                        std::to_string(info.st_uid) + " and has mode " + mode +
                                        ": it must belong to uid " + std::to_string(geteuid()) +
                                        " alone, mode 0700");
  }
  return std::optional<UniqueFd>(std::move(fd));
}

/// Returns whether this call made it; the parent is made too, as /tmp/rondo-UID must be.
Result<bool> make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return true;
  if (errno == ENOENT) {
    const std::string parent = std::filesystem::path(path).parent_path();
    if (!parent.empty() && mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST) {
      return system_status("cannot create the rendezvous directory " + parent, errno);
    }
    if (mkdir(path.c_str(), 0700) == 0) return true;
  }
  if (errno == EEXIST) return false;
  return system_status("cannot create the rendezvous directory " + path, errno);
}

/// Through /proc the address fits however long the directory's path is.
sockaddr_un address_in(const UniqueFd& directory, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s.sock",
                directory.get(), name.c_str());
  return address;
}

/// The lock, or nothing while another process holds it.
Result<std::optional<UniqueFd>> try_lock(const UniqueFd& directory, const std::string& file) {
  UniqueFd lock(
      openat(directory.get(), file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) {
    if (errno == ENOENT) return std::optional<UniqueFd>();
    return system_status("cannot create " + file, errno);
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::optional<UniqueFd>();
    return system_status("cannot lock " + file, errno);
  }
  // Its last holder may have removed the file between our open and our lock: then we hold a lock
  // that nobody sees.
  struct stat held {
  }, there{};
  if (fstat(lock.get(), &held) != 0 || fstatat(directory.get(), file.c_str(), &there, 0) != 0 ||
      held.st_ino != there.st_ino) {
    return std::optional<UniqueFd>();
  }
  return std::optional<UniqueFd>(std::move(lock));
}

}  // namespace

Status check_name(const std::string& name) {
  bool good = !name.empty() && name.size() <= 64 && name[0] != '.';
  for (char c : name) {
    good = good && (isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.');
  }
  if (good) return {};
  return Status(Code::kInvalidArgument,
                "a communicator cannot be named \"" + name +
                    "\": use 1 to 64 letters, digits, '_', '-' or '.', the first not a dot");
}

Result<std::optional<Listener>> Listener::open(const std::string& directory,
                                               const std::string& name) {
  auto made = make_private_directory(directory);
  if (!made.ok()) return made.status();
  auto opened = open_private_directory(directory);
  if (!opened.ok()) return opened.status();
  if (!*opened) return std::optional<Listener>();
  auto lock = try_lock(**opened, name + ".lock");
  if (!lock.ok()) return lock.status();
  if (!*lock) return std::optional<Listener>();

  Listener listener;
  listener.directory_path_ = directory;
  listener.name_ = name;
  listener.made_directory_ = *made;
  listener.directory_ = std::move(**opened);
  listener.lock_ = std::move(**lock);
  unlinkat(listener.directory_.get(), (name + ".sock").c_str(), 0);
  listener.socket_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener.fd() < 0) return system_status("socket", errno);
  const sockaddr_un address = address_in(listener.directory_, name);
  if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return system_status("cannot listen in " + directory, errno);
  }
  return std::optional<Listener>(std::move(listener));
}

Listener::~Listener() {
  if (!lock_.valid()) return;
  unlinkat(directory_.get(), (name_ + ".sock").c_str(), 0);
  unlinkat(directory_.get(), (name_ + ".lock").c_str(), 0);
  if (made_directory_) rmdir(directory_path_.c_str());
}

Result<std::optional<UniqueFd>> try_connect(const std::string& directory, const std::string& name) {
  auto opened = open_private_directory(directory);
  if (!opened.ok()) return opened.status();
  if (!*opened) return std::optional<UniqueFd>();
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return system_status("socket", errno);
  const sockaddr_un address = address_in(**opened, name);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return std::optional<UniqueFd>(std::move(fd));
  }
  switch (errno) {
    case ENOENT:        // no listener yet
    case ECONNREFUSED:  // a stale socket, or one that is about to listen
    case EAGAIN:        // its queue is full
    case EINTR:
      return std::optional<UniqueFd>();
    default:
      return system_status("cannot connect to " + directory + "/" + name + ".sock", errno);
  }
}

Result<Credentials> credentials_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return system_status("SO_PEERCRED", errno);
  }
  return Credentials{.pid = credentials.pid, .uid = credentials.uid};
}

}  // namespace rondo::comm
