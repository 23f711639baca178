// See ranks.hpp.
#include "trainer/ranks.hpp"

#include <spdlog/fmt/fmt.h>

#include "trainer/hash.hpp"

namespace rondo::trainer {
namespace {

/// Everything that must be equal; what only rank 0 uses (logging, files) and what only shapes one
/// rank's speed is not.
uint64_t fingerprint(const Options& o) {
  const std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", o.model, o.layers,
                                       o.width, o.steps, o.epochs, o.batch, o.accum, o.seed,
                                       o.optimizer, o.lr, o.momentum, o.dtype, o.bucket_cap_mb);
  return hash_bytes(text.data(), text.size());
}

}  // namespace

Result<std::vector<uint64_t>> gather_words(Communicator& communicator, const uint64_t (&mine)[2]) {
  std::vector<uint64_t> all(2 * static_cast<size_t>(communicator.size()));
  RONDO_RETURN_IF_ERROR(communicator.all_gather(mine, all.data(), 2, DataType::kInt64));
  return all;
}

Status require_agreement(Communicator& communicator, const Options& options, const Corpus& corpus) {
  const uint64_t mine[] = {fingerprint(options),
                           hash_bytes(corpus.bytes.data(), corpus.bytes.size())};
  Result<std::vector<uint64_t>> all = gather_words(communicator, mine);
  RONDO_RETURN_IF_ERROR(all.status());
  std::string differing;
  for (size_t r = 1; r < all.value().size() / 2; ++r) {
    const bool options_differ = all.value()[2 * r] != all.value()[0];
    const bool data_differs = all.value()[2 * r + 1] != all.value()[1];
    if (!options_differ && !data_differs) continue;
    differing +=
        fmt::format("{}rank {} runs with other {} than rank 0", differing.empty() ? "" : "; ", r,
                    options_differ && data_differs ? "options and other data"
                    : options_differ               ? "options"
                                                   : "data");
  }
  if (differing.empty()) return {};
  return Status(Code::kMismatch, differing + fmt::format(" (here: --data {}, {} bytes)",
                                                         corpus.path, corpus.bytes.size()));
}

}  // namespace rondo::trainer
