// A whole model to and from one file: rank 0 has the file, every rank what is in it. See
// DistributedDataParallel::save() and load().
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <utility>

#include "rondo/ddp.hpp"
#include "trainer/files/tensor_file.hpp"

namespace rondo {
namespace {

using trainer::TensorFile;
using trainer::TensorView;
using Notes = std::map<std::string, std::string>;

/// Where each parameter's part of a flat array lies. Writable where the array is.
std::vector<TensorView> views_of(const DistributedDataParallel& ddp, DataType type,
                                 const std::string& prefix, const void* array) {
  std::vector<TensorView> views;
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    if (ddp.tensors()[t].adds_to >= 0) continue;
    views.push_back({.name = prefix + ddp.tensors()[t].name,
                     .type = type,
                     .shape = ddp.tensors()[t].shape,
                     .data = static_cast<const std::byte*>(array) + ddp.offset(t) * size_of(type)});
  }
  return views;
}

template <class Arrays>
std::vector<TensorView> all_views(DistributedDataParallel& ddp, DataType type,
                                  const Arrays& state) {
  std::vector<TensorView> views = views_of(ddp, type, "", ddp.parameters());
  for (size_t b = 0; b < ddp.buffers().size(); ++b) {
    views.push_back({.name = ddp.buffers()[b].name,
                     .type = type,
                     .shape = ddp.buffers()[b].shape,
                     .data = ddp.buffer(b)});
  }
  for (const auto& [name, array] : state) {
    for (TensorView& view : views_of(ddp, type, name + ".", array)) {
      views.push_back(std::move(view));
    }
  }
  return views;
}

Result<Notes> read(const std::string& path, const std::vector<TensorView>& views) {
  const Result<TensorFile> file = TensorFile::open(path);
  RONDO_RETURN_IF_ERROR(file.status());
  for (const TensorView& view : views) {
    const TensorView* found = file.value().find(view.name);
    if (found == nullptr || found->shape != view.shape || found->type != view.type) {
      return Status(
          Code::kDataError,
          found == nullptr
              ? fmt::format("'{}': has no tensor '{}', which this model has", path, view.name)
              : fmt::format("'{}': tensor '{}' is {} [{}], but this model's is {} [{}]", path,
                            view.name, name(found->type), fmt::join(found->shape, ", "),
                            name(view.type), fmt::join(view.shape, ", ")));
    }
    std::memcpy(const_cast<void*>(view.data), found->data, view.bytes());
  }
  return file.value().metadata();
}

/// `text` of rank 0 on every rank.
Status broadcast_text(Communicator& communicator, std::string& text) {
  uint64_t size = text.size();
  RONDO_RETURN_IF_ERROR(communicator.broadcast(&size, &size, 1, DataType::kUint64, 0));
  text.resize(size);
  return communicator.broadcast(text.data(), text.data(), size, DataType::kUint8, 0);
}

/// Rank 0's status on every rank.
Status share(Communicator& communicator, const Status& mine) {
  auto code = static_cast<int32_t>(mine.code());
  std::string message = mine.message();
  RONDO_RETURN_IF_ERROR(communicator.broadcast(&code, &code, 1, DataType::kInt32, 0));
  RONDO_RETURN_IF_ERROR(broadcast_text(communicator, message));
  return code == 0 ? Status() : Status(static_cast<Code>(code), "rank 0: " + message);
}

/// Notes as text: pairs of lengths and bytes.
std::string pack(const Notes& notes) {
  std::string text;
  for (const auto& [key, value] : notes) {
    text += fmt::format("{} {} {}{}", key.size(), value.size(), key, value);
  }
  return text;
}

Notes unpack(const std::string& text) {
  Notes notes;
  for (size_t at = 0; at < text.size();) {
    size_t used = 0;
    const size_t key = std::stoul(text.substr(at), &used);
    at += used + 1;
    const size_t value = std::stoul(text.substr(at), &used);
    at += used + 1;
    notes[text.substr(at, key)] = text.substr(at + key, value);
    at += key + value;
  }
  return notes;
}

}  // namespace

Status DistributedDataParallel::save(const std::string& path,
                                     const std::map<std::string, const void*>& state,
                                     const std::map<std::string, std::string>& notes) {
  if (is_sharded() && !state.empty()) {
    return Status(Code::kInvalidArgument,
                  "with shards no rank has all of the optimizer's state: save own_ranges() of each "
                  "rank, or the parameters alone");
  }
  RONDO_RETURN_IF_ERROR(wait_parameters());
  Communicator& ranks = communicator();
  Status saved;
  if (ranks.rank() == 0) {
    saved = trainer::write_tensor_file(path, all_views(*this, type(), state), notes);
  }
  return share(ranks, saved);
}

Result<Notes> DistributedDataParallel::load(const std::string& path,
                                            const std::map<std::string, void*>& state) {
  RONDO_RETURN_IF_ERROR(wait_parameters());
  Communicator& ranks = communicator();
  Result<Notes> notes = Notes();
  if (ranks.rank() == 0) notes = read(path, all_views(*this, type(), state));
  RONDO_RETURN_IF_ERROR(share(ranks, notes.status()));
  std::string text = notes.ok() ? pack(notes.value()) : std::string();
  RONDO_RETURN_IF_ERROR(broadcast_text(ranks, text));
  RONDO_RETURN_IF_ERROR(replicate());
  for (const auto& [name, array] : state) {
    RONDO_RETURN_IF_ERROR(ranks.broadcast(array, array, parameter_elements(), type(), 0));
  }
  return unpack(text);
}

}  // namespace rondo
