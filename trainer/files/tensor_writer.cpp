// Writing tensor files, and their checksum. See tensor_file.hpp.
#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "trainer/base/hash.hpp"
#include "trainer/files/disk.hpp"
#include "trainer/files/tensor_file.hpp"
#include "trainer/files/tensor_format.hpp"

namespace rondo::trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "data is written as it is in memory");

using tensor_format::kMetadataKey;

Status refuse(const std::string& path, const std::string& why) {
  return Status(Code::kInvalidArgument, "tensor file '" + path + "' is not written: " + why);
}

Status check(const std::string& path, std::span<const TensorView> tensors,
             const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names;
  for (const TensorView& tensor : tensors) {
    const std::string named = "tensor '" + tensor.name + "'";
    if (tensor.name.empty()) return refuse(path, "a tensor has no name");
    if (tensor.name == kMetadataKey) return refuse(path, named + ": the format keeps this name");
    if (!names.insert(tensor.name).second) return refuse(path, named + " is there twice");
    if (size_of(tensor.type) == 0) return refuse(path, named + " has no type that rondo knows");
    if (tensor.data == nullptr && tensor.bytes() > 0) return refuse(path, named + " has no data");
  }
  if (metadata.count(kChecksumKey) > 0) {
    return refuse(
        path, std::string("the metadata holds ") + kChecksumKey + ", which the writer itself adds");
  }
  return {};
}

/// The order of the data. Stable, so that a file is a function of what is written.
std::vector<const TensorView*> wide_types_first(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return size_of(a->type) > size_of(b->type);
  });
  return order;
}

/// Length and JSON.
std::string header_of(const std::vector<const TensorView*>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header[kMetadataKey] = metadata;
  header[kMetadataKey][kChecksumKey] = tensor_format::checksum(tensors, metadata);
  size_t offset = 0;
  for (const TensorView* tensor : tensors) {
    const size_t end = offset + tensor->bytes();
    header[tensor->name] = {{"dtype", tensor_format::kTypeNames[static_cast<int>(tensor->type)]},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string json = header.dump();
  while (json.size() % tensor_format::kAlignment != 0) json.push_back(' ');
  const uint64_t bytes = json.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + json;
}

uint64_t hash_text(std::string_view text, uint64_t seed) {
  return hash_bytes(text.data(), text.size(), seed);
}

}  // namespace

std::string tensor_format::checksum(std::span<const TensorView* const> tensors,
                                    const std::map<std::string, std::string>& metadata) {
  uint64_t hash = 0;
  for (const auto& [key, value] : metadata) hash = hash_text(value, hash_text(key, hash));
  for (const TensorView* tensor : tensors) {
    if (tensor->bytes() == 0) continue;  // lies nowhere: two of them have no order
    hash = hash_text(tensor->name, hash);
    hash = hash_text(kTypeNames[static_cast<int>(tensor->type)], hash);
    hash = hash_bytes(tensor->shape.data(), tensor->shape.size() * sizeof(size_t), hash);
    hash = hash_bytes(tensor->data, tensor->bytes(), hash);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

Status write_tensor_file(const std::string& path, std::span<const TensorView> tensors,
                         const std::map<std::string, std::string>& metadata) try {
  RONDO_TRY(check(path, tensors, metadata));
  const std::vector<const TensorView*> order = wide_types_first(tensors);
  const std::string header = header_of(order, metadata);
  std::vector<DiskPiece> pieces = {{header.data(), header.size()}};
  for (const TensorView* tensor : order) pieces.push_back({tensor->data, tensor->bytes()});
  return replace_file(path, pieces);
} catch (const nlohmann::json::exception&) {
  return refuse(path, "a name or an entry of the metadata is not UTF-8");
}

}  // namespace rondo::trainer
