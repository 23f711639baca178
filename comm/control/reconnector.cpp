// See reconnector.hpp. The handshake waits, and an agent must not: a thread does it, which lives only
// while a connection is missing.
#include "comm/control/reconnector.hpp"

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"
#include "comm/control/port_probe.hpp"

namespace rondo::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Rank 0 hands out accepted connections after this time, so that a host that does not connect does not
// delay others.
constexpr milliseconds kAcceptTurn{100};
constexpr milliseconds kConnectTurn{2000};
constexpr milliseconds kSendLimit{1000};
constexpr milliseconds kPause{10};  // after an attempt that failed

std::string name_of(uint64_t token) {
  char text[40];
  std::snprintf(text, sizeof text, "agents-%016llx", static_cast<unsigned long long>(token));
  return text;
}

class OverTcp final : public Reconnector {
 public:
  OverTcp(const Bootstrap& bootstrap, Identity identity, uint64_t token)
      : bootstrap_(bootstrap), identity_(std::move(identity)), name_(name_of(token)) {
    identity_.rendezvous = bootstrap.meeting_place(0);
    identity_.is_kept_place = true;
    identity_.listening = identity_.rank == 0 ? bootstrap.listening() : nullptr;
  }
  ~OverTcp() override {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::optional<Connection> reconnect(int rank) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = found_.find(rank); found != found_.end()) {
      std::optional<Connection> connection(std::move(found->second));
      found_.erase(found);
      return connection;
    }
    wanted_.insert(rank);
    if (!runs_) {
      if (thread_.joinable()) thread_.join();  // it has ended, or is about to
      // Without a thread the agent asks again in its next turn.
      runs_ =
          base::guarded([this] { return thread_ = std::thread([this] { run(); }), Status(); }).ok();
    }
    return {};
  }

  bool has_ended(int rank) override {
    const RankHost& place = bootstrap_.places()[static_cast<size_t>(rank)];
    return probes_.try_emplace(rank, place.address, place.port).first->second.is_refused();
  }

  void give_up(int rank) override {
    const std::lock_guard lock(mutex_);
    wanted_.erase(rank);
    found_.erase(rank);
  }

 private:
  bool wants(int rank) {
    const std::lock_guard lock(mutex_);
    return wanted_.contains(rank);
  }
  bool wants_any() {
    const std::lock_guard lock(mutex_);
    return runs_ = !stops_ && !wanted_.empty();
  }
  void put(int rank, Connection connection) {
    const std::lock_guard lock(mutex_);
    if (wanted_.erase(rank) > 0) found_[rank] = std::move(connection);
  }

  void run() {
    while (wants_any()) {
      const Status made =
          base::guarded([this] { return identity_.rank == 0 ? accept() : connect(); });
      if (!made.ok()) std::this_thread::sleep_for(kPause);
    }
  }

  Status accept() {
    const auto rendezvous = RONDO_TRY(Rendezvous::resolve(identity_, name_));
    MeetingFacts facts;
    const Interrupt interrupt = [this] { return stopped(); };
    const IsNeeded is_needed = [this](int rank) { return wants(rank); };
    auto come = RONDO_TRY(host_meeting({.identity = identity_,
                                        .name = name_,
                                        .rendezvous = rendezvous,
                                        .timeout = kAcceptTurn,
                                        .interrupt = interrupt,
                                        .facts = facts,
                                        .is_needed = &is_needed}));
    for (PeerConnection& peer : come) {
      // A rank that came uncalled finds its connection closed, and comes again if it must.
      if (peer.rank < 0 || !wants(peer.rank)) continue;
      const Status welcomed =
          peer.connection.send(FrameKind::kWelcome, 0, {}, {}, steady_clock::now() + kSendLimit);
      if (welcomed.ok()) put(peer.rank, std::move(peer.connection));
    }
    return {};
  }

  Status connect() {
    const auto rendezvous = RONDO_TRY(Rendezvous::resolve(identity_, name_));
    MeetingFacts facts;
    const Interrupt interrupt = [this] {
      RONDO_TRY(stopped());
      return wants(0) ? Status() : Status(Code::kAborted, "no connection is wanted any more");
    };
    const IsNeeded nobody = [](int) { return false; };
    Joined joined = RONDO_TRY(join_meeting({.identity = identity_,
                                            .name = name_,
                                            .rendezvous = rendezvous,
                                            .timeout = kConnectTurn,
                                            .interrupt = interrupt,
                                            .facts = facts,
                                            .is_needed = &nobody}));
    put(0, std::move(joined.host.connection));
    return {};
  }

  Status stopped() const {
    return stops_ ? Status(Code::kAborted, "the communicator is being destroyed") : Status();
  }

  const Bootstrap& bootstrap_;
  Identity identity_;
  const std::string name_;
  std::map<int, PortProbe> probes_;  // of the agent's thread
  std::atomic<bool> stops_{false};
  std::mutex mutex_;  // of what follows
  std::set<int> wanted_;
  std::map<int, Connection> found_;
  bool runs_ = false;  // the thread will look at wanted_ again
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Reconnector> reconnect_over_tcp(const Bootstrap& bootstrap, Identity identity,
                                                uint64_t token) {
  return std::make_unique<OverTcp>(bootstrap, std::move(identity), token);
}

}  // namespace rondo::comm
