// See headers.hpp.
#include "trainer/ddp/headers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "rondo/log.hpp"

namespace rondo::ddp {
namespace {

/// The words of one rank.
enum Word : size_t { kTerms, kEnded, kEpoch, kHash, kWords };

/// " 1 has", "s 0, 2 have".
std::string have(const std::vector<size_t>& ranks) {
  return fmt::format("{} {} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                     ranks.size() == 1 ? "has" : "have");
}

}  // namespace

Headers::Headers(Communicator& communicator, const DdpOptions& options)
    : communicator_(communicator),
      options_(options),
      sent_(kWords),
      all_(kWords * static_cast<size_t>(communicator.size())),
      step_(DdpStep{}) {}

void Headers::send(const DdpHeader& mine) {
  mine_ = mine;
  sent_ = {mine.loss_terms, mine.end_of_data ? 1u : 0u, mine.epoch, mine.sample_hash};
  exchange_.assign(
      1, communicator_.all_gather_async(sent_.data(), all_.data(), kWords, DataType::kUint64));
  read_ = false;
}

Result<DdpStep> Headers::wait() {
  if (!read_) step_ = read();
  read_ = true;
  return step_;
}

void Headers::settle() {
  if (!exchange_.empty()) (void)exchange_[0].wait();
}

Result<DdpStep> Headers::read() {
  RONDO_TRY(exchange_[0].wait());
  DdpStep step{.epoch_ended = true};
  std::vector<size_t> out_of_data, with_data;
  for (size_t r = 0; r * kWords < all_.size(); ++r) {
    const uint64_t* words = &all_[r * kWords];
    step.loss_terms += words[kTerms];
    step.active_ranks += words[kTerms] > 0 ? 1 : 0;
    step.epoch_ended = step.epoch_ended && words[kEnded] != 0;
    if (words[kTerms] > 0) with_data.push_back(r);
    if (words[kTerms] == 0 && words[kEnded] != 0) out_of_data.push_back(r);
  }
  first_active_ = with_data.empty() ? 0 : static_cast<int>(with_data.front());
  if (!options_.join && !out_of_data.empty() && !with_data.empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("uneven inputs: rank{} no data left in "
                              "epoch {}, but rank{}: give all ranks equally many batches, or "
                              "let a rank that has ended join with empty batches",
                              have(out_of_data), all_[out_of_data.front() * kWords + kEpoch],
                              have(with_data)));
  }
  for (const size_t r : with_data) {
    const uint64_t epoch = all_[r * kWords + kEpoch], first = all_[with_data[0] * kWords + kEpoch];
    if (epoch == first) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("uneven inputs: rank {} is in epoch {}, but "
                              "rank {} in epoch {}: ranks begin an epoch together, when all have "
                              "said end_of_data",
                              r, epoch, with_data[0], first));
  }
  suspect(step);
  return step;
}

void Headers::suspect(const DdpStep& step) {
  std::map<uint64_t, size_t> first_with;
  for (size_t r = 0; r * kWords < all_.size(); ++r) {
    const uint64_t* words = &all_[r * kWords];
    if (words[kTerms] > 0 && words[kHash] != 0) {
      const auto [found, added] = first_with.emplace(words[kHash], r);
      if (!added) {
        warn(
            fmt::format("ranks {} and {} read the same data: give each its share (a distributed "
                        "sampler with its own rank)",
                        found->second, r));
      }
    }
    if (epoch_ended_ && words[kTerms] > 0 && words[kEpoch] == ended_epoch_) {
      warn(
          fmt::format("rank {} begins epoch {} again: set_epoch forgotten? Every epoch then has "
                      "the same order",
                      r, words[kEpoch]));
    }
  }
  epoch_ended_ = step.epoch_ended;
  ended_epoch_ = all_[kEpoch];
}

void Headers::warn(const std::string& text) {
  if (std::find(warnings_.begin(), warnings_.end(), text) != warnings_.end()) return;
  warnings_.push_back(text);
  // Every rank has found it; one says it.
  if (communicator_.rank() == 0) log(LogLevel::kWarn, text);
}

Result<double> Headers::factor() const {
  if (options_.average == DdpOptions::Average::kNone) return 1.0;
  if (step_.value().loss_terms == 0) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("loss_terms is 0 on {}, so the gradients of this step have no mean: "
                    "give begin() the number of loss terms (samples or tokens) of each "
                    "rank's batch (DdpHeader::loss_terms); if all batches are empty, "
                    "report no gradients",
                    communicator_.size() == 1 ? "the only rank"
                                              : fmt::format("all {} ranks", communicator_.size())));
  }
  const auto mine = static_cast<double>(mine_.loss_terms);
  const double divisor = options_.average == DdpOptions::Average::kRanks
                             ? mine * communicator_.size()
                             : static_cast<double>(step_.value().loss_terms);
  return divisor == 0 ? 0
                      : (options_.gradients == DdpOptions::Gradients::kOfMean ? mine : 1) / divisor;
}

}  // namespace rondo::ddp
