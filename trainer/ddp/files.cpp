// A whole model to and from one file: rank 0 has the file, every rank what is in it. See
// DistributedDataParallel::save() and load().
#include <fmt/format.h>

#include <utility>

#include "rondo/ddp.hpp"
#include "trainer/checkpoint/tensor_file.hpp"
#include "trainer/checkpoint/tensor_views.hpp"

namespace rondo {
namespace {

using trainer::TensorFile;
using trainer::TensorView;
using Notes = std::map<std::string, std::string>;

template <class Arrays>
std::vector<TensorView> all_views(DistributedDataParallel& ddp, const Arrays& state) {
  std::vector<TensorView> views = trainer::model_views(ddp);
  for (const auto& [name, array] : state) trainer::add_views(ddp, name + ".", array, views);
  return views;
}

Result<Notes> read(const std::string& path, const std::vector<TensorView>& views) {
  const TensorFile file = RONDO_TRY(TensorFile::open(path));
  RONDO_TRY(trainer::fill(file, views));
  return file.metadata();
}

/// `text` of rank 0 on every rank.
Status broadcast_text(Communicator& communicator, std::string& text) {
  uint64_t size = text.size();
  RONDO_TRY(communicator.broadcast(&size, &size, 1, DataType::kUint64, 0));
  text.resize(size);
  return communicator.broadcast(text.data(), text.data(), size, DataType::kUint8, 0);
}

/// Rank 0's status on every rank.
Status share(Communicator& communicator, const Status& mine) {
  auto code = static_cast<int32_t>(mine.code());
  std::string message = mine.message();
  RONDO_TRY(communicator.broadcast(&code, &code, 1, DataType::kInt32, 0));
  RONDO_TRY(broadcast_text(communicator, message));
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
  RONDO_TRY(wait_parameters());
  Communicator& ranks = communicator();
  Status saved;
  if (ranks.rank() == 0) {
    saved = trainer::write_tensor_file(path, all_views(*this, state), notes);
  }
  return share(ranks, saved);
}

Result<Notes> DistributedDataParallel::load(const std::string& path,
                                            const std::map<std::string, void*>& state) {
  RONDO_TRY(wait_parameters());
  Communicator& ranks = communicator();
  Result<Notes> notes = Notes();
  if (ranks.rank() == 0) notes = read(path, all_views(*this, state));
  RONDO_TRY(share(ranks, notes.status()));
  std::string text = notes.ok() ? pack(notes.value()) : std::string();
  RONDO_TRY(broadcast_text(ranks, text));
  RONDO_TRY(replicate());
  for (const auto& [name, array] : state) {
    RONDO_TRY(ranks.broadcast(array, array, parameter_elements(), type(), 0));
  }
  return unpack(text);
}

}  // namespace rondo
