// See elastic.hpp.
#include "trainer/step/elastic.hpp"

#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "trainer/step/ranks.hpp"

namespace rondo::trainer {
namespace {

/// A rank that computes does not notice: as long as a rank may stand still.
constexpr std::chrono::minutes kPatience{10};

/// So often a run begins again in one step, although no rank has died.
constexpr int kMostLosses = 3;
/// The same while ranks agree on the state, where each rank counts alone. It is larger, so that the
/// limit above, at which all ranks have the same count, ends a run first.
constexpr int kMostLossesAtOnce = 2 * kMostLosses;

template <class T>
void copy_to(std::vector<T>& kept, const void* values, size_t count) {
  const T* first = static_cast<const T*>(values);
  kept.assign(first, first + count);
}

template <class T>
std::vector<T> flat_buffers(DistributedDataParallel& ddp) {
  std::vector<T> all;
  for (size_t b = 0; b < ddp.buffers().size(); ++b) {
    const T* first = static_cast<const T*>(ddp.buffer(b));
    all.insert(all.end(), first, first + ddp.buffers()[b].count());
  }
  return all;
}

/// Collective: every rank's records become those of `source`.
template <class Record>
Status share_records(Communicator& communicator, int source, std::vector<Record>& records) {
  uint64_t count = records.size();
  RONDO_TRY(communicator.broadcast(&count, &count, 1, DataType::kUint64, source));
  records.resize(count);
  return communicator.broadcast(records.data(), records.data(), count * sizeof(Record),
                                DataType::kUint8, source);
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// A message of a communicator whose ranks were `ranks` at the beginning of the run.
std::string with_numbers(const std::string& message, const std::vector<int>& ranks) {
  if (ranks.back() + 1 == static_cast<int>(ranks.size())) return message;
  return fmt::format("{}; there ranks 0 to {} are the run's {}", message, ranks.size() - 1,
                     ranks_in_words(ranks));
}

}  // namespace

template <class T>
Status AgreedState<T>::keep(const TrainingProgress& progress, Communicator& communicator,
                            bool shares_buffers, Weights<T>& weights) {
  DistributedDataParallel& ddp = weights.ddp();
  std::vector<T> buffers = flat_buffers<T>(ddp);
  if (shares_buffers && !buffers.empty()) {
    RONDO_TRY(
        communicator.broadcast(buffers.data(), buffers.data(), buffers.size(), type_of<T>(), 0));
  }
  buffers_ = std::move(buffers);
  copy_to(parameters_, ddp.parameters(), ddp.parameter_elements());
  const auto state = weights.optimizer().state();
  optimizer_.resize(state.size());
  for (size_t array = 0; array < state.size(); ++array) {
    copy_to(optimizer_[array], state[array].second, ddp.parameter_elements());
  }
  const LossScalerState scaler =
      weights.scaler() ? weights.scaler()->state() : LossScalerState{.scale = 0};
  scalars_ = {.step = progress.step,
              .epoch = progress.position.epoch,
              .consumed = progress.position.consumed,
              .optimizer_steps = weights.optimizer().steps(),
              .good_steps = scaler.good_steps,
              .skipped_steps = scaler.skipped_steps,
              .scale = scaler.scale};
  kept_ = true;
  return {};
}

template <class T>
Result<TrainingProgress> AgreedState<T>::take(Communicator& communicator, Weights<T>& weights,
                                              ReportHistory& history) const {
  // A rank may have ended the last step in which another died: then its state is the right one.
  const uint64_t mine[] = {kept_ ? uint64_t{1} : 0, scalars_.step};
  const std::vector<uint64_t> all = RONDO_TRY(gather_words(communicator, mine));
  int source = -1;
  for (int r = 0; r < communicator.size(); ++r) {
    const auto at = [&](int rank) { return 2 * static_cast<size_t>(rank); };
    if (all[at(r)] == 0) continue;
    if (source < 0 || all[at(r) + 1] > all[at(source) + 1]) source = r;
  }
  if (source < 0) return TrainingProgress{};

  const bool gives = communicator.rank() == source;
  const auto hand_out = [&](const std::vector<T>& kept, size_t begin, void* values, size_t count) {
    return communicator.broadcast(gives ? kept.data() + begin : values, values, count, type_of<T>(),
                                  source);
  };
  Scalars scalars = scalars_;
  RONDO_TRY(communicator.broadcast(&scalars, &scalars, sizeof scalars, DataType::kUint8, source));
  DistributedDataParallel& ddp = weights.ddp();
  RONDO_TRY(hand_out(parameters_, 0, ddp.parameters(), ddp.parameter_elements()));
  const auto state = weights.optimizer().state();
  static const std::vector<T> kNone;
  for (size_t array = 0; array < state.size(); ++array) {
    RONDO_TRY(hand_out(gives ? optimizer_[array] : kNone, 0, state[array].second,
                       ddp.parameter_elements()));
  }
  size_t begin = 0;
  for (size_t b = 0; b < ddp.buffers().size(); ++b) {
    const size_t count = ddp.buffers()[b].count();
    RONDO_TRY(hand_out(buffers_, begin, ddp.buffer(b), count));
    begin += count;
  }
  RONDO_TRY(share_records(communicator, source, history.steps));
  RONDO_TRY(share_records(communicator, source, history.validations));
  weights.optimizer().set_steps(scalars.optimizer_steps);
  if (weights.scaler()) {
    RONDO_TRY(weights.scaler()->restore({.scale = static_cast<float>(scalars.scale),
                                         .good_steps = scalars.good_steps,
                                         .skipped_steps = scalars.skipped_steps}));
  }
  return TrainingProgress{.found = true,
                          .step = scalars.step,
                          .position = {.epoch = scalars.epoch, .consumed = scalars.consumed},
                          .buffers = {}};
}

Survivors::Survivors(int ranks) : left_(static_cast<size_t>(ranks)) {
  std::iota(left_.begin(), left_.end(), 0);
}

Status Survivors::shrink(Communicator& communicator, const Status& why, int least) {
  const std::string reason = with_numbers(why.message(), left_);
  Result<Communicator> smaller = communicator.shrink(kPatience);
  if (!smaller.ok()) {
    return Status(smaller.status().code(),
                  fmt::format("{}; the ranks that are left do not meet: {}", reason,
                              smaller.status().message()));
  }
  std::vector<int> left, dead = left_;
  for (const int former : smaller->former_ranks()) {
    left.push_back(left_[static_cast<size_t>(former)]);
  }
  std::erase_if(dead, [&](int rank) { return std::ranges::find(left, rank) != left.end(); });
  communicator = std::move(*smaller);
  left_ = std::move(left);
  if (!dead.empty()) losses_in_step_ = losses_ = 0;
  losses_ += dead.empty() ? 1 : 0;
  why_ = reason;
  RONDO_TRY(check_losses(losses_, kMostLossesAtOnce));
  if (std::exchange(goes_on_, false)) deaths_.push_back({.ranks = {}, .after_step = 0, .left = 0});
  // One entry for all that die before the run goes on.
  Death& death = deaths_.back();
  death.ranks.insert(death.ranks.end(), dead.begin(), dead.end());
  std::ranges::sort(death.ranks);
  death.left = static_cast<int>(left_.size());
  if (communicator.size() >= least) return {};
  return Status(Code::kUnavailable, fmt::format("{}; {} of the ranks are left, fewer than "
                                                "--min-ranks {}",
                                                reason, communicator.size(), least));
}

Status Survivors::check_losses(int losses, int most) const {
  if (losses <= most) return {};
  return {Code::kUnavailable,
          fmt::format("{}; no rank has died, but connections were lost {} times in one step: check "
                      "the network between the hosts",
                      why_, losses)};
}

Status Survivors::go_on(uint64_t step, uint64_t global_batch, bool says) {
  // All ranks agree on the step here, and none counts losses of another one.
  if (std::exchange(went_on_after_, step) != step) losses_in_step_ = 0;
  losses_in_step_ += std::exchange(losses_, 0);
  RONDO_TRY(check_losses(losses_in_step_, kMostLosses));
  goes_on_ = true;
  deaths_.back().after_step = step;
  // The one rank that knew of a later step may have died.
  for (Death& each : deaths_) each.after_step = std::min(each.after_step, step);
  if (!says) return {};
  const Death& death = deaths_.back();
  spdlog::warn("{}: {} rank{} after step {}, with a global batch of {} ({})",
               death.ranks.empty() ? "no rank died, but a connection between ranks was lost"
                                   : ranks_in_words(death.ranks) + " died",
               death.left, death.left == 1 ? " goes on" : "s go on", step, global_batch, why_);
  return {};
}

template class AgreedState<float>;
template class AgreedState<double>;

}  // namespace rondo::trainer
