// Reading tensor files. See tensor_file.hpp.
#include "trainer/files/tensor_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "trainer/files/tensor_format.hpp"

namespace rondo::trainer {
namespace {}  // namespace

/// The file's bytes.
class TensorFile::Mapping {
 public:
  static Result<std::shared_ptr<const Mapping>> open(const std::string& path) {
    // A FIFO would keep open() waiting for somebody who writes into it.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return failure("cannot be opened", errno);
    struct stat status;
    void* data = nullptr;
    int error = fstat(fd, &status) == 0 ? 0 : errno;
    const bool regular = error == 0 && S_ISREG(status.st_mode);
    const size_t bytes = regular ? static_cast<size_t>(status.st_size) : 0;
    if (bytes > 0) {
      data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
      if (data == MAP_FAILED) error = errno;
    }
    close(fd);
    if (error != 0) return failure("cannot be read", error);
    if (!regular) return Status(Code::kDataError, "is no regular file");
    return std::shared_ptr<const Mapping>(new Mapping(data, bytes));
  }
  ~Mapping() {
    if (bytes_ > 0) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* data() const { return static_cast<const char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  static Status failure(const char* what, int error) {
    return Status(Code::kDataError, std::string(what) + ": " + std::strerror(error));
  }

  void* const data_;
  const size_t bytes_;
};

TensorFile::TensorFile(std::string path, std::shared_ptr<const Mapping> mapping)
    : path_(std::move(path)), mapping_(std::move(mapping)) {}

Result<TensorFile> TensorFile::open(const std::string& path) {
  const auto in_file = [&path](const Status& status) {
    return Status(status.code(), "tensor file '" + path + "': " + status.message());
  };
  Result<std::shared_ptr<const Mapping>> mapping = Mapping::open(path);
  if (!mapping.ok()) return in_file(mapping.status());
  TensorFile file(path, std::move(mapping).value());
  const Status status = file.parse();
  if (!status.ok()) return in_file(status);
  return file;
}

Status TensorFile::parse() {
  const size_t file_bytes = mapping_->bytes();
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes) {
    return tensor_format::wrong("has " + std::to_string(file_bytes) +
                                " bytes: too short for the length of a header");
  }
  std::memcpy(&header_bytes, mapping_->data(), sizeof header_bytes);
  const size_t rest = file_bytes - sizeof header_bytes;
  if (header_bytes > std::min<uint64_t>(rest, tensor_format::kMaxHeaderBytes)) {
    return tensor_format::wrong("says that its header has " + std::to_string(header_bytes) +
                                " bytes, but " + std::to_string(rest) +
                                " follow: truncated, or no safetensors file");
  }
  const char* text = mapping_->data() + sizeof header_bytes;
  tensor_format::TensorHeader header;
  RONDO_TRY(tensor_format::parse_header(text, header_bytes, header));
  metadata_ = std::move(header.metadata);
  RONDO_TRY(place(header.entries, text + header_bytes, rest - header_bytes));
  return verify();
}

/// The tensors must cover the data, without holes and without overlap.
Status TensorFile::place(std::vector<tensor_format::TensorEntry>& entries, const char* data,
                         size_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  size_t end = 0;
  for (tensor_format::TensorEntry& entry : entries) {
    const std::string& name = entry.tensor.name;
    if (entry.begin != end) {
      return tensor_format::wrong("tensor '" + name + "' starts at byte " +
                                  std::to_string(entry.begin) + " of the data, but byte " +
                                  std::to_string(end) + " is the first that is no other's");
    }
    if (entry.end > data_bytes) {
      return tensor_format::wrong("tensor '" + name + "' ends at byte " +
                                  std::to_string(entry.end) + " of " + std::to_string(data_bytes) +
                                  " bytes of data: the file is truncated");
    }
    end = entry.end;
    entry.tensor.data = data + entry.begin;
    by_name_[name] = tensors_.size();
    tensors_.push_back(std::move(entry.tensor));
  }
  if (end == data_bytes) return {};
  return tensor_format::wrong("has " + std::to_string(data_bytes) +
                              " bytes of data, of which the last " +
                              std::to_string(data_bytes - end) + " belong to no tensor");
}

Status TensorFile::verify() {
  const auto expected = metadata_.find(kChecksumKey);
  if (expected == metadata_.end()) return {};
  has_checksum_ = true;
  const std::string wanted = expected->second;
  metadata_.erase(expected);
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors_) order.push_back(&tensor);
  const std::string actual = tensor_format::checksum(order, metadata_);
  if (actual == wanted) return {};
  return tensor_format::wrong("its checksum is " + actual + ", but should be " + wanted +
                              ": bits have changed since it was written");
}

const TensorView* TensorFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace rondo::trainer
