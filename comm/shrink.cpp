// A communicator of the ranks that are left of one that has failed. Two phases: the roll call decides
// which they are (bootstrap/rendezvous/roll_call.hpp), and these meet as a split's part does. When one of them
// ends in the second phase, both are repeated.
//
// Whether such a communicator exists is decided where a rank passes the last exchange of setting it up.
// A rank in which this exchange ended with a death, or with its limit, cannot know whether others passed
// it. It keeps what it has set up, and comes to the next roll call. If none passed, all of them come
// there. One that passed marks its row of the old board (RankState::shrunk), and then the communicator
// exists on both; it fails at once. The mark does not reach other hosts if an agent on the way has
// ended; but the rank that passed calls the roll of the new communicator, at the same places.
//
// Ranks that continue without it mark their rows of its board, and then destroy it. The board next shows
// that they have left, although they live. Because of the mark, no other rank takes the communicator or
// shrinks it.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "comm/base/limits.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using comm::refuse;
using std::chrono::milliseconds;

namespace {

constexpr std::string_view kShrunk = ", shrunk";
// How long the members of one decision wait for each other.
constexpr milliseconds kShortAttempt{1000}, kLongAttempt{10'000};

}  // namespace

std::string Communicator::Impl::roll_call_name(uint64_t number) const {
  return fmt::format("shrink-{:016x}-{}", token_, number);
}

Status Communicator::Impl::check_left_out(uint64_t number,
                                          std::chrono::steady_clock::time_point began) const {
  for (int r = 0; r < size(); ++r) {
    if (board_->state(r).shrunk.load(std::memory_order_acquire) < number) continue;
    const auto here =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began);
    return {Code::kTimeout,
            fmt::format("shrink: rank {} came too late, or its host did not answer: rank {} and "
                        "others have gone on without it. This call has waited for {}",
                        rank(), r, comm::name_duration(here))};
  }
  return {};
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::make_remainder(
    const comm::Muster& muster, uint64_t number, comm::Endings& endings, milliseconds left) {
  const std::vector<int>& members = muster.members;
  Config config = config_;
  config.world_size = static_cast<int>(members.size());
  config.rank = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  config.name = fmt::format("shrunk-{:016x}-{}", muster.nonce, number);
  // An attempt that misses a member ends while there is time for another one.
  const milliseconds most =
      left > kShortAttempt ? std::clamp(left / 4, kShortAttempt, kLongAttempt) : kLongAttempt;
  config.bootstrap_timeout = std::min(config_.bootstrap_timeout, most);
  const auto check_members = [&] {
    for (const int member : members) {
      if (!endings.is_known(member) && !endings.is_lost(member)) continue;
      // One that has got the new communicator may have destroyed this one. It says so before, so this
      // is looked at after.
      const std::atomic<uint64_t>& theirs = board_->state(member).shrunk;
      if (theirs.load(std::memory_order_acquire) >= number) continue;
      return Status(Code::kPeerDied, fmt::format("{} ended during shrink, or does not answer",
                                                 board_->name_of(member)));
    }
    return Status();
  };
  auto made =
      create(config, {.links = links_,
                      .interrupt = check_members,
                      .title = title_.ends_with(kShrunk) ? title_ : title_ + std::string(kShrunk),
                      .members = comm::name_ranks(members) + " of " + title_,
                      .place = bootstrap_.meeting_place(members.front()),
                      .listening = config.rank == 0 ? bootstrap_.listening() : nullptr,
                      .life_port = life_port_,
                      .undecided = &undecided_});
  for (Impl* const each : {made.ok() ? made->get() : nullptr, undecided_.get()}) {
    if (each == nullptr) continue;
    each->former_ranks_ = members;
    each->config_.bootstrap_timeout = config_.bootstrap_timeout;
  }
  return made;
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::shrink(milliseconds patience) {
  RONDO_TRY(check_process());
  if (group_) return refuse("shrink inside a group: call group_end first");
  if (patience < milliseconds(0) || patience > base::kLongestTimeout) {
    return refuse(fmt::format("shrink: a patience of {} ms: 0 (Config::bootstrap_timeout) to {} ms",
                              patience.count(), base::kLongestTimeout.count()));
  }
  RONDO_TRY(executor_->can_shrink());
  if (patience == milliseconds(0)) patience = config_.bootstrap_timeout;
  const auto began = std::chrono::steady_clock::now();
  std::atomic<uint64_t>& shrunk = board_->state(rank()).shrunk;
  const uint64_t number = shrunk.load(std::memory_order_relaxed) + 1;
  // Release: pairs with check_left_out().
  const auto mark = [&] { shrunk.store(number, std::memory_order_release); };

  Config as_config = config_;
  as_config.rank = rank();
  as_config.world_size = size();
  comm::Endings endings(bootstrap_, *board_);
  auto identity = comm::identity_from(as_config);
  if (!identity.ok()) return identity.status();
  identity->listening = bootstrap_.listening();
  const auto may_exist = [&] { return undecided_ && undecided_->check_left_out(1, began).ok(); };
  std::vector<bool> is_late(static_cast<size_t>(size()));
  const comm::RollCall call{
      .identity = std::move(*identity),
      .name = roll_call_name(number),
      .patience = patience,
      .began = began,
      .place = [this](int leader) { return bootstrap_.meeting_place(leader); },
      .has_ended = [&endings](int r) { return endings.has_ended(r); },
      .is_lost = [&endings](int r) { return endings.is_lost(r); },
      // A rank of this host marks the board that this rank reads, also if it ends after that.
      .is_unseen = [this](int r) { return !board_->is_local(r); },
      // In this order: who marks the old board has dropped another communicator before.
      .exists = [&] { return !check_left_out(number, began).ok() && may_exist(); },
      .next = [&] { return may_exist() ? undecided_->roll_call_name(1) : ""; },
      .interrupt = [&] { return may_exist() ? Status() : check_left_out(number, began); },
      .is_late = is_late};
  // Every further turn follows a death or a lost connection.
  Status failed;
  const auto left = [&] {
    return std::chrono::duration_cast<milliseconds>(began + patience -
                                                    std::chrono::steady_clock::now());
  };
  const auto has_time = [&] { return left() > milliseconds(0); };
  for (int turn = 0; turn <= size() || has_time(); ++turn) {
    const auto muster = RONDO_TRY(call_roll(call));
    if (!muster) {
      mark();
      return std::move(undecided_);
    }
    if (undecided_) {
      undecided_->board_->state(undecided_->rank()).shrunk.store(1, std::memory_order_release);
      undecided_.reset();
    }
    auto made = make_remainder(*muster, number, endings, left());
    if (made.ok()) {
      mark();
      return made;
    }
    failed = made.status();
    // A member whose connection was reset before it learnt of the decision is in the roll call still.
    const bool has_missed = failed.code() == Code::kBootstrap || failed.code() == Code::kTimeout;
    if (failed.code() != Code::kPeerDied && !(has_missed && has_time())) break;
  }
  return failed;
}

Result<Communicator> Communicator::shrink(milliseconds patience) {
  return impl_->guarded([&]() -> Result<Communicator> {
    auto made = impl_->shrink(patience);
    if (!made.ok()) return made.status();
    return Communicator(std::move(*made));
  });
}

const std::vector<int>& Communicator::former_ranks() const { return impl_->former_ranks(); }

}  // namespace rondo
