// See ranks.hpp.
#include "trainer/ranks.hpp"

#include <spdlog/fmt/fmt.h>

#include <sstream>
#include <string>

#include "trainer/hash.hpp"

namespace rondo::trainer {
namespace {

constexpr size_t kLongestText = 512;

/// Everything that must be equal, a word each; what only rank 0 uses (logging, files) and what only
/// shapes one rank's speed is not.
std::string describe(const Options& o, const Corpus& corpus) {
  return fmt::format(
      "--model={} --layers={} --width={} --steps={} --epochs={} --batch={} --accum={} --seed={} "
      "--optimizer={} --lr={} --momentum={} --dtype={} --bucket-cap-mb={} data={}-bytes,hash-{:x}",
      o.model, o.layers, o.width, o.steps, o.epochs, o.batch, o.accum, o.seed, o.optimizer, o.lr,
      o.momentum, o.dtype, o.bucket_cap_mb, corpus.bytes.size(),
      hash_bytes(corpus.bytes.data(), corpus.bytes.size()));
}

/// "--batch=3 (rank 0: --batch=2)" for every word that differs.
std::string differences(const std::string& text, const std::string& first) {
  std::istringstream theirs(text), ours(first);
  std::string differing, a, b;
  while (theirs >> a && ours >> b) {
    if (a != b) differing += fmt::format("{}{} (rank 0: {})", differing.empty() ? "" : ", ", a, b);
  }
  return differing;
}

}  // namespace

Result<std::vector<uint64_t>> gather_words(Communicator& communicator, const uint64_t (&mine)[2]) {
  std::vector<uint64_t> all(2 * static_cast<size_t>(communicator.size()));
  RONDO_RETURN_IF_ERROR(communicator.all_gather(mine, all.data(), 2, DataType::kInt64));
  return all;
}

Status require_agreement(Communicator& communicator, const Options& options, const Corpus& corpus) {
  std::string mine = describe(options, corpus);
  mine.resize(kLongestText, ' ');
  const auto ranks = static_cast<size_t>(communicator.size());
  std::string all(kLongestText * ranks, ' ');
  RONDO_RETURN_IF_ERROR(
      communicator.all_gather(mine.data(), all.data(), kLongestText, DataType::kUint8));
  std::string differing;
  for (size_t r = 1; r < ranks; ++r) {
    const std::string other =
        differences(all.substr(r * kLongestText, kLongestText), all.substr(0, kLongestText));
    if (other.empty()) continue;
    differing += fmt::format("{}rank {} runs with {}", differing.empty() ? "" : "; ", r, other);
  }
  if (differing.empty()) return {};
  return Status(Code::kMismatch, differing + fmt::format(": all ranks need the same; this one has "
                                                         "--data {}",
                                                         corpus.path));
}

}  // namespace rondo::trainer
