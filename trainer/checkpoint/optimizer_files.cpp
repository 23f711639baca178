// See optimizer_files.hpp.
#include "trainer/checkpoint/optimizer_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

namespace rondo::trainer {
namespace {

Status refuse(const TensorFile& file, const std::string& tensor, const std::string& why) {
  return Status(Code::kDataError, "checkpoint '" + file.path() + "': tensor '" + tensor + "' " +
                                      why +
                                      ": resume with the model, --dtype and --optimizer that it "
                                      "was made with");
}

/// The FIRST of a piece's name, if it is one of this tensor's.
std::optional<size_t> first_of(const std::string& name, const std::string& tensor) {
  if (name.size() <= tensor.size() + 1 || !name.starts_with(tensor)) return std::nullopt;
  if (name[tensor.size()] != '@') return std::nullopt;
  size_t first = 0;
  const char* digits = name.c_str() + tensor.size() + 1;
  const auto parsed = std::from_chars(digits, name.c_str() + name.size(), first);
  if (parsed.ec != std::errc() || parsed.ptr != name.c_str() + name.size()) return std::nullopt;
  return first;
}

/// A part of a tensor, and where it was found.
struct Found {
  size_t first, count;
  const TensorView* view;
  const TensorFile* file;
};

/// All parts of one tensor that the files hold, ascending.
Result<std::vector<Found>> find_parts(const std::string& name, const DdpTensor& tensor,
                                      DataType type, std::span<const TensorFile> files) {
  std::vector<Found> parts;
  for (const TensorFile& file : files) {
    for (const TensorView& view : file.tensors()) {
      const bool whole = view.name == name;
      const std::optional<size_t> first = whole ? 0 : first_of(view.name, name);
      if (!first) continue;
      if (whole && view.shape != tensor.shape) {
        return refuse(file, name,
                      fmt::format("has {} elements in another shape than this model's {}",
                                  view.count(), tensor.count()));
      }
      if (view.type != type) {
        return refuse(
            file, view.name,
            fmt::format("is of type {}, not {}", rondo::name(view.type), rondo::name(type)));
      }
      if (view.count() > 0) parts.push_back({*first, view.count(), &view, &file});
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const Found& a, const Found& b) { return a.first < b.first; });
  return parts;
}

/// Whether the parts are the tensor, each element once.
Status require_whole(const std::string& name, const DdpTensor& tensor,
                     const std::vector<Found>& parts, const TensorFile& any) {
  if (parts.empty()) return refuse(any, name, "is missing");
  size_t next = 0;
  for (const Found& part : parts) {
    if (part.first > next) {
      return refuse(*part.file, name,
                    fmt::format("lacks elements from {} to {}", next, part.first));
    }
    if (part.first < next) {
      return refuse(*part.file, part.view->name, "holds elements that another piece holds too");
    }
    next = part.count > tensor.count() - next ? SIZE_MAX : next + part.count;
    if (next == SIZE_MAX) {
      return refuse(*part.file, part.view->name,
                    fmt::format("reaches beyond the {} elements of this model's", tensor.count()));
    }
  }
  if (next == tensor.count()) return {};
  return refuse(*parts.back().file, name,
                fmt::format("lacks elements from {} to {}", next, tensor.count()));
}

}  // namespace

std::vector<TensorView> state_views(const DistributedDataParallel& ddp, DataType type,
                                    std::span<const StateStorage> arrays) {
  std::vector<TensorView> views;
  for (const StateStorage& array : arrays) {
    const auto add = [&](const std::string& name, std::vector<size_t> shape, size_t element) {
      views.push_back(
          {.name = array.name + "." + name,
           .type = type,
           .shape = std::move(shape),
           .data = static_cast<const std::byte*>(array.data) + element * size_of(type)});
    };
    for (size_t t = 0; t < ddp.tensors().size(); ++t) {
      const DdpTensor& tensor = ddp.tensors()[t];
      if (tensor.adds_to >= 0) continue;
      const size_t begin = ddp.offset(t), end = begin + tensor.count();
      if (!ddp.is_sharded()) {
        add(tensor.name, tensor.shape, begin);
        continue;
      }
      for (const DdpRange& range : ddp.own_ranges()) {
        const size_t from = std::max(range.begin, begin), to = std::min(range.end, end);
        if (from < to) add(fmt::format("{}@{}", tensor.name, from - begin), {to - from}, from);
      }
    }
  }
  return views;
}

Result<StateReader> StateReader::open(const DistributedDataParallel& ddp, DataType type,
                                      std::span<const std::string> arrays,
                                      std::span<const TensorFile> files) {
  StateReader reader;
  reader.element_bytes_ = size_of(type);
  for (const std::string& array : arrays) {
    Pieces& pieces = reader.arrays_.emplace_back();
    for (size_t t = 0; t < ddp.tensors().size(); ++t) {
      const DdpTensor& tensor = ddp.tensors()[t];
      if (tensor.adds_to >= 0) continue;
      const std::string name = array + "." + tensor.name;
      const std::vector<Found> parts = RONDO_TRY(find_parts(name, tensor, type, files));
      RONDO_TRY(require_whole(name, tensor, parts, files.front()));
      for (const Found& part : parts) {
        pieces.push_back({.begin = ddp.offset(t) + part.first,
                          .count = part.count,
                          .data = static_cast<const std::byte*>(part.view->data)});
      }
    }
  }
  return reader;
}

void StateReader::read(size_t array, size_t begin, size_t count, void* to) const {
  std::memset(to, 0, count * element_bytes_);
  const Pieces& pieces = arrays_[array];
  const size_t end = begin + count;
  auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                    [&](const FlatPiece& p) { return p.begin + p.count <= begin; });
  for (; piece != pieces.end() && piece->begin < end; ++piece) {
    const size_t first = std::max(begin, piece->begin);
    const size_t last = std::min(end, piece->begin + piece->count);
    std::memcpy(static_cast<std::byte*>(to) + (first - begin) * element_bytes_,
                piece->data + (first - piece->begin) * element_bytes_,
                (last - first) * element_bytes_);
  }
}

}  // namespace rondo::trainer
