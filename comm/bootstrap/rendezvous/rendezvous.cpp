// Private directories, locks and unix sockets.
#include "comm/bootstrap/rendezvous/rendezvous.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "comm/base/printable.hpp"
#include "comm/bootstrap/connection/connection.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {
namespace {

using transport::UniqueFd;

/// The directory, or nothing if it does not exist. Everything later uses the descriptor, so what
/// was checked is what is used.
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

/// Whether rondo derived the directory's name (unique_id.cpp, environment.cpp): a child of some
/// rondo-UID.
bool is_derived(const std::filesystem::path& path) {
  return path.parent_path().filename() == "rondo-" + std::to_string(geteuid());
}

/// The parent of derived directories lies where other users may write: if it exists, it must be
/// this user's.
Status check_parent(const std::string& path) {
  if (!is_derived(path)) return {};
  const std::string parent = std::filesystem::path(path).parent_path();
  struct stat info {};
  if (lstat(parent.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : system_status("cannot look at " + parent, errno);
  }
  if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 022) == 0) return {};
  return {Code::kBootstrap,
          parent + " belongs to uid " + std::to_string(info.st_uid) +
              " or can be written by others: remove it, or set RONDO_RENDEZVOUS to a directory of "
              "your own on every rank"};
}

// Of directories that rondo has made for a meeting where the caller wants it: the sticky bit, which
// changes nothing where only their owner may write, says that the last meeting there removes them.
// No other mark survives that the process that made them leaves first.
constexpr mode_t kMadeMode = 01700;

/// Removes the directory if rondo has made it, as `is_derived` says too, and it is empty. Takes no
/// memory: for destructors.
bool remove_if_made(const std::string& path, bool is_derived) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (is_derived || (info.st_mode & 01777) == kMadeMode) && rmdir(path.c_str()) == 0;
}

Status make_directory(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return {};
  return system_status("cannot create the rendezvous directory " + path, errno);
}

/// Returns whether this call made it, if needed with its parent. It may be gone at once, when another
/// meeting there ends.
Result<bool> make_private_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  if (is_derived(path)) {  // the parent (/tmp/rondo-UID) stays, for all jobs of this user
    RONDO_TRY(make_directory(parent, 0700));
    RONDO_TRY(check_parent(path));
  }
  const mode_t mode = is_derived(path) ? 0700 : kMadeMode;
  int error = 0;
  // The parent may be gone at once, too: not again and again, unless nothing can be made there.
  for (int turn = 0; turn < 3; ++turn) {
    if (mkdir(path.c_str(), mode) == 0) return true;
    error = errno;
    if (error != ENOENT || parent.empty()) break;
    RONDO_TRY(make_directory(parent, mode));
  }
  if (error == EEXIST) return false;
  return system_status("cannot create the rendezvous directory " + path, error);
}

/// A path through /proc fits into the address, whatever the length of the directory's path.
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
  // Its last holder may have removed the file between open and lock: then this lock is on a file
  // that no other process finds.
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
  constexpr size_t kMostShown = 80;
  bool good = !name.empty() && name.size() <= 64 && name[0] != '.';
  for (char c : name) {
    good = good && (isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.');
  }
  if (good) return {};
  return Status(Code::kInvalidArgument,
                "a communicator cannot be named \"" + base::printable(name, kMostShown) +
                    (name.size() > kMostShown ? "..." : "") +
                    "\": use 1 to 64 letters, digits, '_', '-' or '.', the first not a dot");
}

namespace {

/// At its end, removes a listener's socket and lock from a directory, and the directory if rondo has
/// made it and no other meeting is there. The lock is held as long as the socket listens, so a
/// socket whose lock is free is stale.
class DirectoryLock {
 public:
  DirectoryLock(std::string path, const std::string& name)
      : path_(std::move(path)),
        parent_(std::filesystem::path(path_).parent_path()),
        socket_(name + ".sock"),
        lock_file_(name + ".lock"),
        is_derived_(is_derived(path_)) {}
  ~DirectoryLock() {
    if (lock_.valid()) {
      unlinkat(directory_.get(), socket_.c_str(), 0);
      unlinkat(directory_.get(), lock_file_.c_str(), 0);
    }
    if (remove_if_made(path_, is_derived_)) remove_if_made(parent_, false);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  void hold(UniqueFd directory, UniqueFd lock) {
    directory_ = std::move(directory);
    lock_ = std::move(lock);
  }

 private:
  const std::string path_, parent_, socket_, lock_file_;
  const bool is_derived_;
  UniqueFd directory_, lock_;
};

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    entries.push_back(at->path());
  }
  return entries;
}

/// Removes what a rank 0 that was killed during a meeting left in the directory: sockets whose lock is
/// free.
void sweep(const UniqueFd& directory, const std::filesystem::path& path) {
  for (std::filesystem::path file : entries_of(path)) {
    if (file.extension() != ".lock") continue;
    auto lock = try_lock(directory, file.filename());
    if (!lock.ok() || !*lock) continue;
    unlinkat(directory.get(), file.replace_extension(".sock").filename().c_str(), 0);
    unlinkat(directory.get(), file.replace_extension(".lock").filename().c_str(), 0);
  }
}

/// Sweeps the directories beside `path`, of other jobs, and removes those that are empty then. A rank
/// whose directory was removed recreates it.
void sweep_siblings(const std::filesystem::path& path) {
  for (const std::filesystem::path& sibling : entries_of(path.parent_path())) {
    if (sibling == path) continue;
    auto directory = open_private_directory(sibling);
    if (!directory.ok() || !*directory) continue;
    sweep(**directory, sibling);
    rmdir(sibling.c_str());
  }
}

/// The name in Linux's abstract socket namespace, one per network namespace.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

UniqueFd unix_socket() {
  return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Result<std::optional<Listener>> listen_in_directory(const std::string& path,
                                                    const std::string& name) {
  auto directory_lock = std::make_shared<DirectoryLock>(path, name);
  auto made = RONDO_TRY(make_private_directory(path));
  if (made && is_derived(path)) sweep_siblings(path);
  auto opened = RONDO_TRY(open_private_directory(path));
  if (!opened) return std::optional<Listener>();
  sweep(*opened, path);
  auto lock = RONDO_TRY(try_lock(*opened, name + ".lock"));
  if (!lock) return std::optional<Listener>();

  const sockaddr_un address = address_in(*opened, name);
  unlinkat(opened->get(), (name + ".sock").c_str(), 0);
  directory_lock->hold(std::move(*opened), std::move(*lock));
  UniqueFd fd = unix_socket();
  if (!fd.valid()) return system_status("socket", errno);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return system_status("cannot listen in " + path, errno);
  }
  return std::optional<Listener>(Listener(std::move(fd), std::move(directory_lock)));
}

Result<std::optional<Listener>> listen_at_abstract(const std::string& name) {
  UniqueFd fd = unix_socket();
  if (!fd.valid()) return system_status("socket", errno);
  sockaddr_un address;
  const socklen_t bytes = abstract_address(name, address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return system_status("cannot listen at the abstract socket " + name, errno);
  }
  return std::optional<Listener>(Listener(std::move(fd)));
}

Result<std::optional<UniqueFd>> connect_unix(const sockaddr_un& address, socklen_t bytes,
                                             const std::string& text) {
  UniqueFd fd = unix_socket();
  if (!fd.valid()) return system_status("socket", errno);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0) {
    return std::optional<UniqueFd>(std::move(fd));
  }
  switch (errno) {
    case ENOENT:        // no listener yet
    case ECONNREFUSED:  // a stale socket, or one that is about to listen
    case EAGAIN:        // its queue is full
    case EINTR:
      return std::optional<UniqueFd>();
    default:
      return system_status("cannot connect to " + text, errno);
  }
}

/// Once per process.
void warn_of_short(const std::string& secret) {
  constexpr size_t kEnough = 16;
  static std::atomic<bool> has_warned{false};
  if (secret.size() >= kEnough || has_warned.exchange(true)) return;
  log(LogLevel::kWarn,
      "the job's secret has " + std::to_string(secret.size()) +
          " characters, and whoever poses as rank 0 once can try secrets at leisure "
          "after that: use at least " +
          std::to_string(kEnough) + " random ones, as `head -c 24 /dev/urandom | base64` prints");
}

}  // namespace

Result<Rendezvous> Rendezvous::resolve(const Identity& identity, const std::string& name) {
  const std::string& given = identity.rendezvous;
  Rendezvous rendezvous;
  rendezvous.name_ = name;
  rendezvous.text_ = rendezvous.place_ = given;
  rendezvous.listening_ = identity.listening;
  if (given.starts_with(kAbstractScheme)) {
    rendezvous.scheme_ = Scheme::kAbstract;
    rendezvous.place_ = given.substr(kAbstractScheme.size());
  } else if (comm::is_tcp(given)) {
    rendezvous.scheme_ = Scheme::kTcp;
    auto place = RONDO_TRY(TcpPlace::parse(given));
    rendezvous.tcp_ = std::make_shared<TcpPlace>(std::move(place));
    if (!identity.secret.empty()) rendezvous.tcp_->prefer_outward();
    if (identity.secret.empty() && !rendezvous.tcp_->is_loopback_only()) {
      return Status(Code::kInvalidArgument,
                    given +
                        " can be reached from other hosts, and this job has no secret: give "
                        "every rank the same RONDO_SECRET_FILE, or meet at tcp://127.0.0.1");
    }
    if (identity.rank == 0 && !rendezvous.tcp_->is_loopback_only()) warn_of_short(identity.secret);
  } else if (given.find("://") != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "the rendezvous is " + given + ": it must be a directory or tcp://HOST:PORT");
  } else {
    rendezvous.text_ += "/" + name + ".sock";
  }
  return rendezvous;
}

Result<std::optional<Listener>> Rendezvous::listen() const {
  if (scheme_ == Scheme::kDirectory) return listen_in_directory(place_, name_);
  if (scheme_ == Scheme::kAbstract) return listen_at_abstract(place_);
  if (listening_) {
    UniqueFd shared(fcntl(listening_->get(), F_DUPFD_CLOEXEC, 0));
    if (!shared.valid()) return system_status("cannot listen at " + text_, errno);
    return std::optional<Listener>(Listener(std::move(shared)));
  }
  auto fd = RONDO_TRY(tcp_->listen());
  if (!fd) return std::optional<Listener>();
  return std::optional<Listener>(Listener(std::move(*fd)));
}

Result<std::optional<UniqueFd>> Rendezvous::try_connect(Deadline deadline) const {
  if (scheme_ == Scheme::kTcp) return tcp_->try_connect(deadline);
  sockaddr_un address;
  if (scheme_ == Scheme::kAbstract) {
    const socklen_t bytes = abstract_address(place_, address);
    return connect_unix(address, bytes, text_);
  }
  RONDO_TRY(check_parent(place_));
  auto opened = RONDO_TRY(open_private_directory(place_));
  if (!opened) return std::optional<UniqueFd>();
  address = address_in(*opened, name_);
  return connect_unix(address, sizeof address, text_);
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
