// A directory for as long as an object lives.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "rondo/status.hpp"

namespace rondo::base {

/// Accessible by this user only; removed with its contents at the end.
class TemporaryDirectory {
 public:
  /// A new one, whose name begins with `prefix`; in `folder`, or where the system has temporary files.
  static Result<TemporaryDirectory> create(const std::string& prefix, std::string folder = {}) {
    std::error_code error;
    if (folder.empty()) folder = std::filesystem::temp_directory_path(error).string();
    std::string path = folder + "/" + prefix + "XXXXXX";
    if (error || mkdtemp(path.data()) == nullptr) {
      return Status(Code::kSystem, "cannot create a directory like " + path + ": " +
                                       (error ? error.message() : std::strerror(errno)));
    }
    return TemporaryDirectory(std::move(path));
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace rondo::base
