// See dataset.hpp.
#include "trainer/data/dataset.hpp"

#include <new>

#include "trainer/data/datasets.hpp"

namespace rondo::trainer {

Result<std::unique_ptr<Dataset>> open_dataset(DataKind kind, const std::string& path,
                                              const SampleShape& shape) try {
  RONDO_CHECK(shape.classes > 0 && (kind == DataKind::kImages || shape.context > 0));
  switch (kind) {
    case DataKind::kNextByte:
    case DataKind::kByteWindows:
      return open_bytes(kind, path, shape);
    case DataKind::kTokenWindows:
      return open_tokens(path, shape);
    case DataKind::kImages:
      return open_images(path, shape);
  }
  return Status(Code::kInvalidArgument, "no such kind of data");
} catch (const std::bad_alloc&) {
  return Status(Code::kResourceExhausted, "data '" + path + "': does not fit into memory");
}

std::string path_for_rank(std::string path, uint64_t rank) {
  static const std::string kWord = "{rank}";
  const std::string number = std::to_string(rank);
  for (size_t at = path.find(kWord); at != std::string::npos;
       at = path.find(kWord, at + number.size())) {
    path.replace(at, kWord.size(), number);
  }
  return path;
}

}  // namespace rondo::trainer
