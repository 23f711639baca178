// See disk.hpp.
#include "trainer/files/disk.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

DiskWatcher disk_watcher = nullptr;

void tell(const char* operation, const std::string& path) {
  if (disk_watcher != nullptr) disk_watcher(operation, path);
}

Status failure(const std::string& path, const char* what, int error) {
  return Status(Code::kSystem, "'" + path + "' cannot be " + what + ": " + std::strerror(error));
}

/// A descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(open(path.c_str(), flags, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status write_piece(int fd, const std::string& path, DiskPiece piece) {
  constexpr size_t kMost = 64 << 20;  // Linux takes less than 2 GiB at once
  const char* next = static_cast<const char*>(piece.data);
  while (piece.bytes > 0) {
    tell("write", path);
    const ssize_t written = write(fd, next, std::min(piece.bytes, kMost));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(path, "written", errno);
    next += written;
    piece.bytes -= static_cast<size_t>(written);
  }
  return {};
}

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.native();
}

/// What is there and is no regular file must not be replaced by one: a device, a pipe.
Status require_replaceable(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::regular || type == fs::file_type::not_found) return {};
  if (type == fs::file_type::none) return failure(path, "written", error.value());
  const char* what = type == fs::file_type::directory ? "a folder" : "no regular file";
  return Status(Code::kSystem, "'" + path + "' cannot be written: it is " + what);
}

Status rename_or_fail(const std::string& from, const std::string& to) {
  tell("rename", to);
  if (rename(from.c_str(), to.c_str()) == 0) return {};
  return failure(from, ("renamed to '" + to + "'").c_str(), errno);
}

}  // namespace

Status write_file(const std::string& path, std::span<const DiskPiece> pieces) {
  tell("create", path);
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  if (file.get() < 0) return failure(path, "created", errno);
  for (const DiskPiece& piece : pieces) RONDO_TRY(write_piece(file.get(), path, piece));
  tell("sync", path);
  if (fsync(file.get()) != 0) return failure(path, "written", errno);
  return {};
}

Status replace_file(const std::string& path, std::span<const DiskPiece> pieces) {
  RONDO_TRY(require_replaceable(path));
  const std::string file = file_behind(path);
  const std::string temporary = temporary_name(file);
  Status status = write_file(temporary, pieces);
  if (status.ok()) status = rename_or_fail(temporary, file);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return sync_folder(folder_of(file));
}

Status try_replace(const std::string& path) {
  RONDO_TRY(require_replaceable(path));
  const std::string folder = folder_of(file_behind(path)) + "/";
  return access(folder.c_str(), W_OK | X_OK) == 0 ? Status() : failure(path, "written", errno);
}

Status exchange_folder(const std::string& from, const std::string& to) {
  std::error_code ignored;
  if (!fs::exists(to, ignored)) {
    RONDO_TRY(rename_or_fail(from, to));
    return sync_folder(folder_of(to));
  }
  tell("exchange", to);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) return failure(to, "replaced", errno);
    const std::string aside = from + ".old";
    RONDO_TRY(rename_or_fail(to, aside));
    RONDO_TRY(rename_or_fail(from, to));
    RONDO_TRY(rename_or_fail(aside, from));
  }
  return sync_folder(folder_of(to));
}

Status create_folder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  const std::string above = folder_of(path);
  if (above != path) RONDO_TRY(create_folder(above));
  tell("create", path);
  if (!fs::create_directory(path, error) && error) return failure(path, "created", error.value());
  return sync_folder(above);
}

Status sync_folder(const std::string& path) {
  tell("sync", path);
  const Descriptor folder(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder.get() < 0) return failure(path, "opened", errno);
  // Some file systems have nothing to sync for a folder and say EINVAL.
  if (fsync(folder.get()) != 0 && errno != EINVAL) return failure(path, "written", errno);
  return {};
}

Status remove_with_content(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return {};
  std::vector<fs::path> inside;
  if (fs::is_directory(status)) {
    fs::directory_iterator entries(path, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      inside.push_back(entries->path());
    }
    if (error) return failure(path, "listed", error.value());
  }
  for (const fs::path& entry : inside) RONDO_TRY(remove_with_content(entry.native()));
  tell("remove", path);
  fs::remove(path, error);
  if (error) return failure(path, "removed", error.value());
  return {};
}

std::string file_behind(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::error_code error;
  fs::path at = path;
  for (int link = 0; link < kMostLinks; ++link) {
    const fs::path target = fs::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / target;  // which is the target, where that is absolute
  }
  return at.native();
}

Result<std::string> read_text_file(const std::string& path) {
  const Descriptor file(path, O_RDONLY | O_CLOEXEC);
  if (file.get() < 0) return failure(path, "opened", errno);
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = ::read(file.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure(path, "read", errno);
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
  }
}

std::string temporary_name(const std::string& path) {
  const fs::path whole(path);
  const std::string name =
      "." + whole.filename().native() + ".tmp." + std::to_string(static_cast<long>(getpid()));
  return (whole.parent_path() / name).native();
}

bool is_temporary_name(const std::string& name) {
  return name.starts_with(".") && name.find(".tmp.") != name.npos;
}

void watch_disk(DiskWatcher watcher) { disk_watcher = watcher; }

}  // namespace rondo::trainer
