// See agreement.hpp.
#include "trainer/ddp/agreement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "trainer/base/hash.hpp"

namespace rondo::ddp {
namespace {

std::string line_of(const char* kind, const DdpTensor& tensor, DataType otherwise) {
  return fmt::format(
      "{} '{}' {}[{}]{}{}", kind, tensor.name,
      tensor.type && *tensor.type != otherwise ? fmt::format("{} ", name(*tensor.type)) : "",
      fmt::join(tensor.shape, ", "), tensor.may_skip ? " may_skip" : "",
      tensor.adds_to >= 0 ? fmt::format(" adds to {}", tensor.adds_to) : "");
}

/// They travel in other calls where they are the caller's.
const char* owner_of(const std::vector<DdpTensor>& tensors, void* DdpTensor::*memory) {
  return !tensors.empty() && tensors[0].*memory != nullptr ? "caller's" : "rondo's";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line) && !line.empty();) lines.push_back(line);
  return lines;
}

const char* name_of(DdpOptions::Average average) {
  using Average = DdpOptions::Average;
  return average == Average::kRanks ? "ranks" : average == Average::kNone ? "none" : "terms";
}

const char* name_of(DdpOptions::Gradients gradients) {
  return gradients == DdpOptions::Gradients::kOfMean ? "mean" : "sum";
}

/// The first line in which `theirs` differs from rank 0's.
std::string difference(size_t rank, const std::vector<std::string>& first,
                       const std::vector<std::string>& theirs) {
  size_t line = 0;
  while (line < first.size() && line < theirs.size() && first[line] == theirs[line]) ++line;
  const auto at = [&](const std::vector<std::string>& lines) -> std::string {
    return line < lines.size() ? lines[line] : "nothing more";
  };
  return fmt::format("rank 0 has {}, but rank {} has {}", at(first), rank, at(theirs));
}

}  // namespace

std::vector<std::string> describe(const std::vector<DdpTensor>& tensors,
                                  const std::vector<DdpTensor>& buffers,
                                  const DdpOptions& options) {
  std::vector<std::string> lines = {fmt::format(
      "options type={} bucket_cap_mb={} auto_after_steps={} average={} join={} "
      "broadcast_buffers={} rows={} hook={} "
      "shard={} gradients_of={} parameters={} gradients={}",
      name(options.type),
      options.bucket_cap_mb == kDdpAutoCap ? "auto" : fmt::format("{}", options.bucket_cap_mb),
      options.auto_after_steps, name_of(options.average), options.join, options.broadcast_buffers,
      static_cast<int>(options.rows), options.hook ? options.hook->name() : "none", options.shard,
      name_of(options.gradients), owner_of(tensors, &DdpTensor::data),
      owner_of(tensors, &DdpTensor::gradient))};
  for (const DdpTensor& tensor : tensors) {
    lines.push_back(line_of("parameter", tensor, options.type));
  }
  for (const DdpTensor& buffer : buffers) {
    lines.push_back(line_of("buffer", buffer, options.type));
  }
  return lines;
}

Status require_same(Communicator& communicator, const std::vector<std::string>& mine) {
  const std::string text = fmt::format("{}\n", fmt::join(mine, "\n"));
  const auto ranks = static_cast<size_t>(communicator.size());
  const uint64_t words[] = {trainer::hash_bytes(text.data(), text.size()), text.size()};
  std::vector<uint64_t> all(2 * ranks);
  RONDO_TRY(communicator.all_gather(words, all.data(), 2, DataType::kUint64));
  size_t longest = 0;
  bool same = true;
  for (size_t r = 0; r < ranks; ++r) {
    same = same && all[2 * r] == all[0];
    longest = std::max<size_t>(longest, all[2 * r + 1]);
  }
  if (same) return {};

  std::string padded = text, texts(longest * ranks, '\n');
  padded.resize(longest, '\n');
  RONDO_TRY(communicator.all_gather(padded.data(), texts.data(), longest, DataType::kUint8));
  const std::vector<std::string> first = lines_of(texts.substr(0, longest));
  for (size_t r = 1; r < ranks; ++r) {
    if (all[2 * r] == all[0]) continue;
    return Status(Code::kMismatch,
                  difference(r, first, lines_of(texts.substr(r * longest, longest))) +
                      ": every rank must build the same model with the same options");
  }
  return {};
}

}  // namespace rondo::ddp
