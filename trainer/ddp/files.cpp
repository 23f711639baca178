// A whole model to and from one file: rank 0 has the file, every rank what is in it. See
// DistributedDataParallel::save() and load().
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <utility>

#include "rondo/ddp.hpp"
#include "trainer/files/tensor_file.hpp"
#include "trainer/files/tensor_views.hpp"

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

/// On every rank alike.
Status require_host(DistributedDataParallel& ddp, const char* call) {
  const int device = ddp.communicator().device();
  if (device < 0) return {};
  return {
      Code::kUnavailable,
      fmt::format("{}() on GPU {}: files are for memory of the host. Copy parameters and buffers "
                  "there, and write or read them with a DistributedDataParallel without a device",
                  call, device)};
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

/// Of kDdpAutoCap: the number of ranks, and where their buckets end. Not among the caller's notes.
constexpr const char* kBucketsNote = "rondo.buckets";

std::string buckets_note(int ranks, const std::vector<DdpBucket>& layout) {
  std::vector<size_t> words = {static_cast<size_t>(ranks)};
  for (const DdpBucket& bucket : layout) words.push_back(bucket.offset + bucket.count);
  return fmt::format("{}", fmt::join(words, " "));
}

/// Nothing where it was made by another number of ranks, or for other tensors.
void use_buckets(DistributedDataParallel& ddp, const std::string& note) {
  std::istringstream words(note);
  int ranks = 0;
  words >> ranks;
  std::vector<size_t> ends;
  for (size_t end = 0; words >> end;) ends.push_back(end);
  if (ddp.relayout().automatic && ranks == ddp.communicator().size()) {
    (void)ddp.set_bucket_ends(ends);
  }
}

}  // namespace

Status DistributedDataParallel::save(const std::string& path,
                                     const std::map<std::string, const void*>& state,
                                     const std::map<std::string, std::string>& notes) {
  RONDO_TRY(require_host(*this, "save"));
  if (is_sharded() && !state.empty()) {
    return Status(Code::kInvalidArgument,
                  "with shards no rank has all of the optimizer's state: save own_ranges() of each "
                  "rank, or the parameters alone");
  }
  RONDO_TRY(wait_parameters());
  if (relayout().pending) RONDO_TRY(settle_buckets());
  Communicator& ranks = communicator();
  Status saved;
  if (ranks.rank() == 0) {
    Notes all = notes;
    if (relayout().automatic && !relayout().pending) {
      all[kBucketsNote] = buckets_note(ranks.size(), layout());
    }
    saved = trainer::write_tensor_file(path, all_views(*this, state), all);
  }
  return share(ranks, saved);
}

Result<Notes> DistributedDataParallel::load(const std::string& path,
                                            const std::map<std::string, void*>& state) {
  RONDO_TRY(require_host(*this, "load"));
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
  Notes all = unpack(text);
  const auto buckets = all.find(kBucketsNote);
  if (buckets == all.end()) return all;
  use_buckets(*this, buckets->second);
  all.erase(buckets);
  return all;
}

}  // namespace rondo
