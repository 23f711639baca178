// Communicators made from communicators: the ranks exchange what they want, and each part then
// meets as a communicator of its own.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>

#include "comm/base/guarded.hpp"
#include "comm/base/printable.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using comm::refuse;

namespace {

// A killed process's sockets close a little before its end can be seen, and its host's agent has to
// tell other hosts.
constexpr std::chrono::milliseconds kUntilDeathIsSeen{500};
constexpr size_t kMostNameChars = 60;  // the board has 111 for the name and the members

}  // namespace

Result<std::optional<Communicator::Impl::SplitPart>> Communicator::Impl::choose_part(
    int color, int key, std::string_view called, std::string_view name) {
  RONDO_TRY(check_process());
  if (group_) return refuse(fmt::format("{} inside a group: call group_end first", called));
  struct SplitChoice {
    int32_t color, key;
    uint32_t nonce;  // rank 0's keeps parts of communicators of the same name apart
  };
  const SplitChoice own{.color = color, .key = key, .nonce = std::random_device{}()};
  const std::vector<SplitChoice> all =
      RONDO_TRY(gather_on_host(own, called == "duplicate" ? board::FingerprintKind::kDuplicate
                                                          : board::FingerprintKind::kSplit));
  const uint64_t number = ++splits_;
  // After the exchange: a rank that is refused keeps nobody waiting.
  if (color < kNoColor) {
    return refuse(fmt::format("split: color {} is negative; kNoColor is {}", color, kNoColor));
  }
  if (color == kNoColor) return std::optional<SplitPart>();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (all[static_cast<size_t>(r)].color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  Config config = config_;
  config.world_size = static_cast<int>(members.size());
  config.rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  // Names are short: what grows with every split of a split is hashed.
  config.name = fmt::format("split-{:016x}-{:08x}-{}-{}", std::hash<std::string>{}(config_.name),
                            all[0].nonce, number, color);
  std::string title =
      fmt::format("{}/{}", title_, called == "split" ? fmt::format("color {}", color) : called);
  if (number > 1) {
    title += fmt::format(", {} {}", called == "split" ? "split" : "number", number);
  }
  const bool named = !name.empty();
  if (named) title = base::printable(name, kMostNameChars);
  return std::optional<SplitPart>(
      {std::move(config), std::move(members), called, number, std::move(title), named});
}

// While a part is made, its members watch each other, and this communicator's error, as they do
// inside an operation. A member that cannot make its part says so on this board.
Status Communicator::Impl::check_members(const SplitPart& part) {
  // A rank that waits here does not stand still: another one's deadline blames who does.
  board_->state(rank()).heartbeat.fetch_add(1, std::memory_order_relaxed);
  Status status = watch_->check_split(part.members, part.number, part.called);
  if (!status.ok()) return status;
  if (board_->has_error()) status = board_->read_error();
  std::vector<int> needed = part.members;
  for (int r = 0; r < size(); ++r) {
    if (board_->hears_through(r)) needed.push_back(r);
  }
  if (status.ok()) status = watch_->check_alive(needed, fmt::format("during {}", part.called));
  if (status.ok()) return {};
  executor_->abort();
  return board_->error();
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::make_part(const SplitPart& part) {
  const auto failing = [&](const Status& why) { note_failure(part, why); };
  auto made =
      create(part.config, {.links = links_,
                           .interrupt = [&] { return check_members(part); },
                           .failing = failing,
                           .title = part.title,
                           .members = comm::name_ranks(part.members) + " of " + title_,
                           .named = part.named,
                           .place = bootstrap_.meeting_place(part.members.front()),
                           .listening = part.config.rank == 0 ? bootstrap_.listening() : nullptr});
  if (made.ok()) return made;
  return explain_failure(part, made.status());
}

/// Unless it is the consequence of another member's failure.
void Communicator::Impl::note_failure(const SplitPart& part, const Status& why) {
  (void)base::guarded([&] {
    switch (why.code()) {
      case Code::kInvalidArgument:
      case Code::kResourceExhausted:
      case Code::kSystem:
      case Code::kUnavailable:
        RONDO_TRY(check_members(part));
        watch_->fail_split(part.number, why.code());
        return Status();
      default:
        return Status();
    }
  });
}

/// The cause, where it is known here: a member may have learnt of it from the next one, in the
/// part's numbers.
Status Communicator::Impl::explain_failure(const SplitPart& part, const Status& status) {
  const comm::Interrupt is_known = [&] { return check_members(part); };
  RONDO_TRY(is_known());
  if (status.code() == Code::kPeerDied) {
    const comm::Deadline until(std::chrono::steady_clock::now() + kUntilDeathIsSeen, &is_known);
    RONDO_TRY(comm::poll_until({}, until).status());
    // A connection was reset, and only its two ends know. Without this note a member whose own
    // connections hold would wait for this rank until its deadline.
    watch_->fail_split(part.number, status.code());
  }
  if (std::ranges::is_sorted(part.members) && part.members.back() + 1 == part.config.world_size) {
    return status;
  }
  return {
      status.code(),
      fmt::format("{}: {} of this communicator, which are 0 to {} in the new one: {}", part.called,
                  comm::name_ranks(part.members), part.config.world_size - 1, status.message())};
}

Result<std::optional<Communicator>> Communicator::split(int color, int key, std::string_view name) {
  return impl_->guarded([&]() -> Result<std::optional<Communicator>> {
    auto part = impl_->choose_part(color, key, "split", name);
    if (!part.ok()) return part.status();
    if (!*part) return std::optional<Communicator>();
    auto made = impl_->make_part(**part);
    if (!made.ok()) return made.status();
    return std::optional<Communicator>(Communicator(std::move(*made)));
  });
}

Result<Communicator> Communicator::duplicate() {
  return impl_->guarded([&]() -> Result<Communicator> {
    auto part = impl_->choose_part(0, 0, "duplicate");
    if (!part.ok()) return part.status();
    auto made = impl_->make_part(**part);
    if (!made.ok()) return made.status();
    return Communicator(std::move(*made));
  });
}

}  // namespace rondo
