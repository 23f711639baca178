// See file.hpp.
#include "trainer/data/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace rondo::trainer {

Status data_error(const std::string& path, const std::string& why) {
  return Status(Code::kDataError, "data '" + path + "': " + why);
}

Result<InputFile> InputFile::open(const std::string& path) {
  // Without O_NONBLOCK a pipe would wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return data_error(path, std::string("cannot be opened: ") + std::strerror(errno));
  InputFile file(path, fd, 0);
  struct stat status = {};
  if (fstat(fd, &status) != 0) {
    return data_error(path, std::string("cannot be examined: ") + std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) return data_error(path, "is not a regular file");
  file.size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

Result<size_t> InputFile::read_some(uint64_t offset, void* to, size_t bytes) const {
  for (;;) {
    const ssize_t got = pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EINTR) continue;
    return data_error(path_, std::string("cannot be read: ") + std::strerror(errno));
  }
}

Status InputFile::read_at(uint64_t offset, void* to, size_t bytes) const {
  auto* p = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    const size_t got = RONDO_TRY(read_some(offset, p, bytes));
    if (got == 0) {
      return data_error(path_, "ends at byte " + std::to_string(offset) + ", " +
                                   std::to_string(bytes) + " bytes too early");
    }
    p += got;
    offset += got;
    bytes -= got;
  }
  return {};
}

Status append_file(const std::string& path, std::vector<uint8_t>& bytes) {
  const InputFile file = RONDO_TRY(InputFile::open(path));
  const size_t start = bytes.size();
  for (;;) {
    constexpr size_t kPiece = 1 << 20;
    const size_t end = bytes.size();
    bytes.resize(end + kPiece);
    const Result<size_t> got = file.read_some(end - start, bytes.data() + end, kPiece);
    bytes.resize(end + (got.ok() ? got.value() : 0));
    RONDO_TRY(got.status());
    if (got.value() == 0) return {};
  }
}

}  // namespace rondo::trainer
