// See ranks.hpp.
#include "trainer/step/ranks.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "kernels/host/cpu_mask.hpp"

namespace rondo::trainer {
namespace {

/// What only rank 0 uses, and what only shapes one rank's speed, may differ.
bool may_differ(const std::string& option) {
  return option == "compute_threads" || option == "workers" || option == "data" ||
         option == "validation" || option == "pace" || option == "weights";
}

/// Everything that must be equal, a word each.
std::string describe(const TrainOptions& options, const Dataset& data, const Dataset* validation) {
  std::string text;
  const nlohmann::ordered_json values = to_json(options);
  for (auto it = values.begin(); it != values.end(); ++it) {
    if (!may_differ(it.key())) text += fmt::format("{}={} ", it.key(), it.value().dump());
  }
  text += fmt::format("resume={} trace={} validate_every={} checkpoints={} checkpoint_every={} ",
                      options.resume, !options.trace.empty(), options.validate_every,
                      !options.checkpoint_dir.empty(), options.checkpoint_every);
  // With a rank in the path each has its own.
  const auto content = [](const std::string& path, const Dataset& dataset) {
    return path.find("{rank}") != std::string::npos
               ? "each-its-own"
               : fmt::format("{}-bytes,hash-{:x}", dataset.facts().bytes, dataset.hash());
  };
  text += "data=" + content(options.data, data) + " validation=";
  return text + (validation == nullptr ? "none" : content(options.validation, *validation));
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
  RONDO_TRY(communicator.all_gather(mine, all.data(), 2, DataType::kInt64));
  return all;
}

Result<uint64_t> count_cores(Communicator& communicator) {
  kernels::CpuMask mask = kernels::allowed_cpus();
  uint64_t bytes = mask.size();
  RONDO_TRY(communicator.all_reduce(&bytes, &bytes, 1, DataType::kUint64, ReduceOp::kMax));
  mask.resize(bytes, '\0');
  std::string all(bytes * static_cast<size_t>(communicator.size()), '\0');
  RONDO_TRY(communicator.all_gather(mask.data(), all.data(), bytes, DataType::kUint8));
  for (size_t i = 0; i < all.size(); ++i) {
    mask[i % bytes] = static_cast<char>(mask[i % bytes] | all[i]);
  }
  return static_cast<uint64_t>(std::max(1, kernels::count_cpus(mask)));
}

Status require_agreement(Communicator& communicator, const TrainOptions& options,
                         const Dataset& data, const Dataset* validation) {
  std::string mine = describe(options, data, validation);
  // All texts have the longest one's length: none is cut, or ranks that differ after the cut would
  // seem to agree.
  uint64_t longest = mine.size();
  RONDO_TRY(communicator.all_reduce(&longest, &longest, 1, DataType::kUint64, ReduceOp::kMax));
  mine.resize(longest, ' ');
  const auto ranks = static_cast<size_t>(communicator.size());
  std::string all(longest * ranks, ' ');
  RONDO_TRY(communicator.all_gather(mine.data(), all.data(), longest, DataType::kUint8));
  std::string differing;
  for (size_t r = 1; r < ranks; ++r) {
    const std::string other = differences(all.substr(r * longest, longest), all.substr(0, longest));
    if (other.empty()) continue;
    differing += fmt::format("{}rank {} runs with {}", differing.empty() ? "" : "; ", r, other);
  }
  if (differing.empty()) return {};
  differing += ": all ranks need the same";
  const bool of_data = differing.find("data=") != std::string::npos;
  return Status(Code::kMismatch,
                of_data ? differing + "; this one has --data " + data.facts().path : differing);
}

}  // namespace rondo::trainer
