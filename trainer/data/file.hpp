// Files of training data: opened, and read whole or in places. Every error names the path. No
// mapping into memory: a file that shrinks under a mapping ends the process, here it is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// kDataError: "data 'PATH': WHY".
Status data_error(const std::string& path, const std::string& why);

/// A regular file, open for reading. Owns a descriptor; reading is thread-safe.
class InputFile {
 public:
  /// kDataError: missing, no permission, no regular file.
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  /// Bytes, when it was opened.
  uint64_t size() const { return size_; }
  /// Reads `bytes` bytes from `offset`. kDataError also when the file ends before.
  Status read_at(uint64_t offset, void* to, size_t bytes) const;
  /// As much of it as there is, to the number of bytes read: 0 at the end.
  Result<size_t> read_some(uint64_t offset, void* to, size_t bytes) const;

 private:
  InputFile(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}

  std::string path_;
  int fd_;
  uint64_t size_;
};

/// Appends the whole file, whatever size it claims to have.
Status append_file(const std::string& path, std::vector<uint8_t>& bytes);

}  // namespace rondo::trainer
