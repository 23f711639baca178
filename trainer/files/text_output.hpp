// Where --json and --trace write: a file, in which any part can be written and the end cut off, or a
// stream, as a pipe, a terminal or what stdout goes to, which takes one text, at the end of a run.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// One thread. Owns a descriptor.
class TextOutput {
 public:
  TextOutput() = default;
  /// Creates a file that is not there, and changes none that is. A pipe without a reader is an error
  /// at once. `flag`: the one that named the path, for errors.
  static Result<TextOutput> open(const std::string& flag, const std::string& path);
  ~TextOutput();
  TextOutput(TextOutput&& other) noexcept;
  TextOutput& operator=(TextOutput&& other) noexcept;

  bool is_open() const { return fd_ >= 0; }
  bool is_stream() const { return is_stream_; }

  /// What follows the last write(). Where it fails, a part may be written.
  Status write(std::string_view text);
  /// REQUIRES: no stream. The same.
  Status write_at(off_t begin, std::string_view text);
  Status cut(off_t size);

 private:
  Status failure(int error) const;

  std::string name_;  // flag and path
  int fd_ = -1;
  bool is_stream_ = false;
};

}  // namespace rondo::trainer
