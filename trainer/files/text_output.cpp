// See text_output.hpp.
#include "trainer/files/text_output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace rondo::trainer {

Result<TextOutput> TextOutput::open(const std::string& flag, const std::string& path) {
  TextOutput output;
  output.name_ = flag + " '" + path + "'";
  struct stat there = {}, out = {};
  const bool is_there = stat(path.c_str(), &there) == 0;
  if (is_there && fstat(STDOUT_FILENO, &out) == 0 && there.st_dev == out.st_dev &&
      there.st_ino == out.st_ino) {
    // Opened anew, a file would be written from its beginning, over what stdout holds.
    output.fd_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    output.is_stream_ = true;
    if (output.fd_ < 0) return output.failure(errno);
    return output;
  }
  // Without O_NONBLOCK a pipe would be waited for until somebody reads it.
  output.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (output.fd_ < 0 && errno == ENXIO && is_there && S_ISFIFO(there.st_mode)) {
    return Status(Code::kSystem, "cannot write " + output.name_ +
                                     ": it is a pipe that nobody reads: start its reader first");
  }
  if (output.fd_ < 0 || fcntl(output.fd_, F_SETFL, O_WRONLY) != 0 ||
      fstat(output.fd_, &there) != 0) {
    return output.failure(errno);
  }
  output.is_stream_ = !S_ISREG(there.st_mode);
  return output;
}

TextOutput::~TextOutput() {
  if (fd_ >= 0) close(fd_);
}

TextOutput::TextOutput(TextOutput&& other) noexcept { *this = std::move(other); }

TextOutput& TextOutput::operator=(TextOutput&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(is_stream_, other.is_stream_);
  return *this;
}

Status TextOutput::failure(int error) const {
  return {Code::kSystem, "cannot write " + name_ + ": " + std::strerror(error)};
}

Status TextOutput::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Status TextOutput::write_at(off_t begin, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = pwrite(fd_, text.data(), text.size(), begin);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(errno);
    begin += written;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Status TextOutput::cut(off_t size) { return ftruncate(fd_, size) == 0 ? Status() : failure(errno); }

}  // namespace rondo::trainer
