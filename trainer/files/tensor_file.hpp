// Named tensors in a file, in the safetensors format: a u64 with the header's length, a JSON
// header, the data; little-endian, row-major. Readable by PyTorch and others, and theirs here.
// Knows nothing of training; refuses files that are not exactly as the format says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "rondo/types.hpp"

namespace rondo::trainer {

/// Borrowed: `data` belongs to the caller who writes, or to the TensorFile that was read.
struct TensorView {
  std::string name;
  DataType type;
  std::vector<size_t> shape;  // {}: one element
  const void* data;           // any alignment where the file is another program's

  size_t count() const {
    size_t product = 1;
    for (const size_t extent : shape) product *= extent;
    return product;
  }
  size_t bytes() const { return count() * size_of(type); }
};

/// The metadata entry with which flipped bits are found: a hash of the other metadata, of all
/// names, types and shapes, and of all data, as 16 hexadecimal digits. Files of other programs lack
/// it.
inline constexpr char kChecksumKey[] = "rondo.checksum";

/// Replaces the file at `path`, or leaves it as it was: also when the program or the machine dies
/// meanwhile. On the disk when it returns. Tensors of wider types come first in the file, so that
/// each is aligned. kInvalidArgument: a name twice, empty or "__metadata__", not UTF-8, or
/// kChecksumKey among the metadata. kSystem: the disk.
Status write_tensor_file(const std::string& path, std::span<const TensorView> tensors,
                         const std::map<std::string, std::string>& metadata);

namespace tensor_format {
struct TensorEntry;
}

/// A file that was found valid. Movable; the views stay valid as long as it, or what it was moved
/// to, lives. Must not be changed or cut meanwhile by others (replacing it is no such change).
class TensorFile {
 public:
  /// Checks everything, the checksum too where there is one. kDataError, naming the path and what
  /// is wrong.
  static Result<TensorFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of their data.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// Without the checksum.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Null if there is none of that name.
  const TensorView* find(const std::string& name) const;
  /// Whether there was a checksum (and it was right).
  bool has_checksum() const { return has_checksum_; }

 private:
  class Mapping;
  TensorFile(std::string path, std::shared_ptr<const Mapping> mapping);
  Status parse();
  Status place(std::vector<tensor_format::TensorEntry>& entries, const char* data,
               size_t data_bytes);
  Status verify();

  std::string path_;
  std::shared_ptr<const Mapping> mapping_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> by_name_;  // index into tensors_
  std::map<std::string, std::string> metadata_;
  bool has_checksum_ = false;
};

}  // namespace rondo::trainer
