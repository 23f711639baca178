// See roll_call.hpp. The decision travels as the payload of the welcome: nonce, 8 bytes; the members'
// ranks, 4 bytes each.
#include "comm/bootstrap/rendezvous/roll_call.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string_view>

#include "comm/base/bytes.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"

namespace rondo::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kSendLimit{1000};
constexpr milliseconds kAgainAfter{5};
constexpr milliseconds kForLateLeaders{
    100};  // how long a rank waits again for one that has not led

std::string pack(const Muster& muster) {
  base::ByteWriter packed;
  packed.put(muster.nonce);
  for (const int32_t member : muster.members) packed.put(member);
  return packed.take();
}

/// Nothing: not a decision that has this rank as a member.
std::optional<Muster> unpack(std::string_view bytes, int rank, int ranks) {
  base::ByteReader reader(bytes);
  Muster muster{.members = {}, .nonce = reader.get<uint64_t>()};
  while (!reader.left().empty()) {
    const auto member = reader.get<int32_t>();
    const int before = muster.members.empty() ? -1 : muster.members.back();
    if (!reader.is_ok() || member <= before || member >= ranks) return {};
    muster.members.push_back(member);
  }
  if (!reader.is_ok() || !std::ranges::binary_search(muster.members, rank)) return {};
  return muster;
}

class Caller {
 public:
  explicit Caller(const RollCall& call)
      : call_(call), rank_(call.identity.rank), ranks_(call.identity.world_size) {}

  Result<std::optional<Muster>> run() {
    if (ranks_ == 1)
      return std::optional(found({}));  // there is no rank to meet, and maybe no place
    for (int leader = 0; leader < rank_ && !exists_; ++leader) {
      if (is_absent(leader)) continue;
      auto muster = follow(leader);
      if (!muster.ok() || *muster) return muster;
    }
    if (exists_) return std::optional<Muster>();
    return lead();
  }

 private:
  // A meeting is around its rank 0: ranks count from the leader on.
  int to_meeting(int rank, int leader) const { return (rank - leader + ranks_) % ranks_; }
  int from_meeting(int rank, int leader) const { return (rank + leader) % ranks_; }

  Identity identity_for(int leader) const {
    Identity identity = call_.identity;
    identity.rank = to_meeting(rank_, leader);
    if (rank_ != leader) identity.listening.reset();
    if (std::string place = call_.place(leader); !place.empty()) identity.rendezvous = place;
    return identity;
  }
  std::string name_for(int leader) const { return call_.name + "-" + std::to_string(leader); }

  /// Not ok: this roll call is over.
  Status check(MeetingFacts& facts) {
    exists_ = exists_ || call_.exists();
    if (!exists_) return call_.interrupt();
    facts.next = next_name();
    return {Code::kPeerDied, "the communicator of an earlier turn exists"};
  }

  /// Whoever keeps the same communicator knows that name, with whatever number at its end.
  std::string next_name() const { return call_.next() + "-" + std::to_string(rank_); }

  bool is_late(int rank) const { return call_.is_late[static_cast<size_t>(rank)]; }
  bool is_absent(int rank) const { return call_.has_ended(rank) || call_.is_lost(rank); }

  /// Nothing: that leader has ended, or does not come, or exists_.
  Result<std::optional<Muster>> follow(int leader) {
    const Identity identity = identity_for(leader);
    const std::string name = name_for(leader);
    auto rendezvous = RONDO_TRY(Rendezvous::resolve(identity, name));
    Status broken_off;
    MeetingFacts facts;
    const Interrupt interrupt = [&] {
      broken_off = check(facts);
      if (broken_off.ok() && is_absent(leader)) return Status(Code::kPeerDied, "ended");
      return broken_off;
    };
    const IsNeeded nobody = [](int) { return false; };
    const auto until = steady_clock::now() + (is_late(leader) ? kForLateLeaders : call_.patience);
    const auto join = [&] {
      const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
      return join_meeting({.identity = identity,
                           .name = name,
                           .rendezvous = rendezvous,
                           .timeout = std::max(left, milliseconds(1)),
                           .interrupt = interrupt,
                           .facts = facts,
                           .is_needed = &nobody,
                           .on_other_name = &on_other_name_});
    };
    auto joined = join();
    // A connection that was lost is no proof that the leader has ended: this rank comes again.
    while (joined.status().code() == Code::kPeerDied && broken_off.ok() && !facts.heard &&
           !is_absent(leader) && steady_clock::now() < until) {
      (void)poll_until({}, {steady_clock::now() + kAgainAfter, &interrupt});
      joined = join();
    }
    if (joined.ok()) {
      auto muster = unpack(joined->welcome, rank_, ranks_);
      if (muster) return muster;
      return Status(Code::kBootstrap,
                    "rank " + std::to_string(leader) + " sent a roll call that makes no sense");
    }
    if (exists_) return std::optional<Muster>();
    RONDO_TRY(broken_off);
    const Status& why = joined.status();
    if (facts.heard) return why;
    const bool did_not_come = why.code() == Code::kBootstrap || why.code() == Code::kTimeout;
    if (!did_not_come && why.code() != Code::kPeerDied) return why;
    call_.is_late[static_cast<size_t>(leader)] = did_not_come;
    return std::optional<Muster>();
  }

  Result<std::optional<Muster>> lead() {
    const Identity identity = identity_for(rank_);
    const std::string name = name_for(rank_);
    auto rendezvous = RONDO_TRY(Rendezvous::resolve(identity, name));
    MeetingFacts facts;
    const IsNeeded is_needed = [this](int in_meeting) {
      const int rank = from_meeting(in_meeting, rank_);
      return !is_late(rank) && !is_absent(rank);
    };
    const Interrupt interrupt = [&] { return check(facts); };
    auto come = host_meeting({.identity = identity,
                              .name = name,
                              .rendezvous = rendezvous,
                              .timeout = call_.patience,
                              .interrupt = interrupt,
                              .facts = facts,
                              .is_needed = &is_needed,
                              .on_other_name = &on_other_name_});
    Status decided = check(facts);
    if (!come.ok())
      return exists_ ? std::optional<Muster>() : Result<std::optional<Muster>>(come.status());
    const Muster muster = found(*come);
    if (decided.ok()) decided = check_majority(muster.members);
    const auto tell_all = [&](FrameKind kind, const std::string& what) {
      for (PeerConnection& peer : *come) {
        if (peer.rank < 0) continue;
        // One that this does not reach finds that the others wait for it, or they that it has ended.
        (void)peer.connection.send(kind, 0, what, {}, steady_clock::now() + kSendLimit);
      }
    };
    if (exists_) {
      tell_all(FrameKind::kOtherName, facts.next);
      return std::optional<Muster>();
    }
    tell_all(decided.ok() ? FrameKind::kWelcome : FrameKind::kError,
             decided.ok() ? pack(muster) : pack_status(decided));
    RONDO_TRY(decided);
    return std::optional(muster);
  }

  /// This rank and those that have come to it.
  Muster found(std::span<const PeerConnection> come) const {
    Muster muster{.members = {rank_}, .nonce = std::random_device{}()};
    muster.nonce = muster.nonce << 32 | std::random_device{}();
    for (const PeerConnection& peer : come) {
      if (peer.rank >= 0) muster.members.push_back(from_meeting(peer.rank, rank_));
    }
    std::ranges::sort(muster.members);
    return muster;
  }

  /// See roll_call.hpp.
  Status check_majority(const std::vector<int>& members) const {
    std::vector<int> missing, unseen;
    int lowest = ranks_;
    for (int rank = 0; rank < ranks_; ++rank) {
      const bool is_member = std::ranges::binary_search(members, rank);
      const bool has_ended = !is_member && call_.has_ended(rank);
      if (has_ended && !call_.is_unseen(rank)) continue;
      lowest = std::min(lowest, rank);
      if (has_ended) {
        unseen.push_back(rank);
      } else if (!is_member) {
        missing.push_back(rank);
      }
    }
    if (missing.empty()) return {};
    // One rank of two leaves the other only if that has ended.
    const bool is_pair = members.size() == 1 && missing.size() == 1;
    const bool has_lowest = members.front() == lowest && !is_pair;
    if (members.size() + (has_lowest ? 1 : 0) > missing.size() + unseen.size()) return {};
    return Status(Code::kTimeout, explain_minority(members, missing, unseen));
  }

  /// Patience is how long it may wait: hosts that do not answer are given up sooner.
  std::string explain_minority(const std::vector<int>& members, const std::vector<int>& missing,
                               const std::vector<int>& unseen) const {
    std::vector<int> silent;
    std::ranges::copy_if(missing, std::back_inserter(silent), call_.is_lost);
    const auto waited = std::chrono::duration_cast<milliseconds>(steady_clock::now() - call_.began);
    std::string text =
        "shrink: " + name_ranks(missing) + " did not come within " + name_duration(waited);
    if (!silent.empty()) {
      text += " (" + std::string(silent.size() < missing.size() ? "of these, " : "") +
              (silent.size() < missing.size() ? name_ranks(silent) : "they") +
              (silent.size() == 1 && missing.size() > 1 ? " is" : " are") +
              " on a host that does not answer)";
    }
    text += ", but may still be running. The ranks that called shrink() (" + name_ranks(members) +
            ") are too few to continue without them, because the missing ranks might continue, too";
    if (!unseen.empty()) {
      text += "; " + name_ranks(unseen) + " ended, and might have continued with them before that";
    }
    text += ". To continue, end " + name_ranks(missing);
    if (waited >= call_.patience) text += ", or give shrink() more patience";
    return text;
  }

  const RollCall& call_;
  const int rank_, ranks_;
  bool exists_ = false;  // the communicator that is undecided here
  const std::function<void(std::string_view)> on_other_name_ = [this](std::string_view name) {
    const std::string next = call_.next();
    exists_ = exists_ || (!next.empty() && name.starts_with(next + "-"));
  };
};

}  // namespace

Result<std::optional<Muster>> call_roll(const RollCall& call) { return Caller(call).run(); }

}  // namespace rondo::comm
