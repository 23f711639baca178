// Who shares a host, and the stars of one communicator: one around rank 0, and where there are
// several hosts one on each.
#include "comm/bootstrap/session/bootstrap.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/bootstrap/connection/closed_in_children.hpp"
#include "comm/bootstrap/connection/interface.hpp"

namespace rondo::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

class Bootstrap::Impl {
 public:
  Impl(const Identity& identity, milliseconds timeout, const Interrupt& interrupt)
      : timeout_(timeout),
        interrupt_(interrupt),
        star_(std::make_unique<Star>(identity, timeout, interrupt)),
        hosts_(base::HostMap::one_host(identity.world_size)) {}

  Status meet(const Identity& identity, const std::string& name, const Rendezvous& rendezvous) {
    const Deadline until{steady_clock::now() + timeout_, &interrupt_};
    RONDO_TRY(star_->gather(identity, name, rendezvous, until));
    ++rounds_;
    if (rendezvous.is_tcp()) RONDO_TRY(meet_nearby(identity, name, until));
    own_pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    if (!own_pidfd_.valid()) return star_->fail(system_status("pidfd_open", errno));
    return {};
  }

  Result<std::vector<Parcel>> exchange(FrameKind kind, std::string_view bytes,
                                       std::span<const int> fds) {
    ++rounds_;
    std::vector<int> given(fds.begin(), fds.end());
    const bool introduces = own_pidfd_.valid();
    if (introduces) given.push_back(own_pidfd_.get());
    // Descriptors stay on the host. All of both stars is on its way before this rank waits, and what
    // has failed is known best where all ranks are.
    if (!near_) {
      RONDO_TRY(star_->post(kind, bytes, given));
    } else {
      RONDO_TRY(star_->post(kind, bytes, {}));
      RONDO_TRY(on_host(near_->post(kind, {}, given)));
    }
    auto all = RONDO_TRY(star_->finish(kind, bytes, near_ ? std::span<const int>() : given));
    if (near_) {
      auto local = near_->finish(kind, {}, given);
      // After a barrier over TCP other ranks may close their connections, which explains nothing.
      const bool is_last = kind == FrameKind::kBarrier && !local.ok();
      RONDO_TRY(is_last ? star_->fail(local.status()) : on_host(local.status()));
      const std::span<const int> members = hosts_.ranks_on(hosts_.host_of(star_->rank()));
      for (size_t i = 0; i < members.size(); ++i) {
        all[static_cast<size_t>(members[i])].fds = std::move((*local)[i].fds);
      }
    }
    if (introduces) watch_peers(all);
    tcp_star_.reset();
    return all;
  }
  int rounds() const { return rounds_; }

  Star& star() { return *star_; }
  /// The star of this host's ranks.
  Star& near() { return near_ ? *near_ : *star_; }
  const base::HostMap& hosts() const { return hosts_; }
  const std::vector<RankHost>& places() const { return places_; }
  const std::shared_ptr<const UniqueFd>& listening() const { return listening_; }
  const std::vector<Peer>& peers() const { return near_ ? peers_ : star_->peers(); }
  bool has_heard() const { return star_->has_heard() || (near_ && near_->has_heard()); }

  /// A failure on this host becomes that of all ranks.
  Status on_host(const Status& status) {
    if (status.ok()) return status;
    RONDO_TRY(explained(*near_, status));
    return star_->fail(status);
  }

  std::vector<PeerConnection> take_control() {
    std::vector<PeerConnection> kept;
    for (PeerConnection& link : star_->links()) {
      const bool first = star_->rank() == 0 ? hosts_.local_rank(link.rank) == 0
                                            : hosts_.local_rank(star_->rank()) == 0;
      if (first && !hosts_.share_host(link.rank, star_->rank())) kept.push_back(std::move(link));
    }
    return kept;
  }

  void close_sockets() {
    star_->close();
    if (near_) near_->close();
    interrupt_ = {};
  }

 private:
  /// The failure that has been told over TCP. A rank of this host may have ended because of one whose
  /// message is still under way.
  Status explained(const Star& near, const Status& status) {
    const bool ended = status.code() == Code::kPeerDied && !near.has_heard();
    return ended ? star_->await_last_words(kVerdictGrace) : star_->status();
  }

  /// TCP passes no descriptors: the ranks of a host agree over it on a unix socket, and meet there.
  Status meet_nearby(const Identity& identity, const std::string& name, Deadline until) {
    auto local = RONDO_TRY(agree_on_hosts(identity));
    auto place = RONDO_TRY(Rendezvous::resolve(local, name));
    // Until all of the host have come, no rank sends anything over TCP or leaves, unless it fails.
    rounds_ += 2;  // of the hosts, and below
    auto near = std::make_unique<Star>(local, timeout_, [this] {
      if (interrupt_) RONDO_TRY(interrupt_());
      const bool meets = meets_nearby_ != nullptr && meets_nearby_->links().empty();
      return meets ? star_->check_links() : Status();
    });
    const bool one_host = hosts_.hosts() == 1;
    const std::span<const int> members = hosts_.ranks_on(hosts_.host_of(identity.rank));
    if (!one_host) near->call_ranks(members);
    if (local.world_size > 1) {
      meets_nearby_ = near.get();
      const Status met = near->gather(local, name, place, until);
      meets_nearby_ = nullptr;
      RONDO_TRY(explained(*near, met));
      if (!met.ok()) return one_host || near->has_heard() ? met : star_->fail(met);
    }
    if (one_host) {
      tcp_star_ = std::exchange(star_, std::move(near));
      return {};
    }
    near_ = std::move(near);
    know_peers(members);
    return {};
  }

  /// Exchanges every rank's host over TCP. Returns where the ranks of this one meet, and as whom,
  /// with a secret that only ranks with the job's secret can derive.
  Result<Identity> agree_on_hosts(const Identity& identity) {
    auto here = RankHost::here(identity.rank);
    if (!here.ok()) return star_->fail(here.status());
    auto interface = interface_for_data();
    if (!interface.ok()) return star_->fail(interface.status());
    ListeningPort own = identity.own_port;
    if (own.socket == nullptr) {
      auto listener = listen_anywhere(interface->address);
      if (!listener.ok()) return star_->fail(listener.status());
      own = {.socket = share_closed_in_children(std::move(listener->socket)),
             .address = interface->address,
             .port = listener->port};
    }
    listening_ = own.socket;
    here->interface = interface->name;
    here->address = own.address;
    here->port = own.port;
    here->ticket = random_hex();
    const std::string packed = pack(*here);
    RONDO_TRY(star_->post(FrameKind::kGather, packed, {}));
    for (const Parcel& each : RONDO_TRY(star_->finish(FrameKind::kGather, packed, {}))) {
      auto place = unpack_host(each.bytes);
      if (!place) return Status(Code::kBootstrap, "a rank said nonsense about its host");
      places_.push_back(std::move(*place));
    }
    hosts_ = group_by_host(places_);
    RONDO_TRY(check_one_user(places_, hosts_));
    RONDO_TRY(check_reach());
    const std::span<const int> members = hosts_.ranks_on(hosts_.host_of(identity.rank));
    Identity local = identity;
    local.rank = hosts_.local_rank(identity.rank);
    local.world_size = static_cast<int>(members.size());
    local.rendezvous =
        kAbstractScheme + "rondo-" + places_[static_cast<size_t>(members.front())].ticket;
    const Digest key = derive_key(key_of(identity.secret), local.rendezvous);
    local.secret.assign(reinterpret_cast<const char*>(key.data()), key.size());
    return local;
  }

  /// The same on all ranks: they have met, so they learn at once what they could only wait for later.
  Status check_reach() const {
    if (hosts_.hosts() == 1 || met_at_loopback_) return {};
    for (size_t rank = 0; rank < places_.size(); ++rank) {
      const RankHost& place = places_[rank];
      if (!is_loopback(Interface{.name = place.interface, .address = place.address})) continue;
      return Status(Code::kInvalidArgument,
                    "rank " + std::to_string(rank) + " on host " + place.name +
                        " can be reached at " + place.address + " (" + place.interface +
                        ") only, which other hosts do not reach: RONDO_INTERFACE there must name "
                        "an interface between the hosts");
    }
    return {};
  }

  /// RONDO_INTERFACE, else that by which the ranks have met. Ranks that met at loopback share a host,
  /// and may have no secret: other hosts must not reach them.
  Result<Interface> interface_for_data() {
    auto met = interface_of_socket(star_->links().front().connection.fd());
    met_at_loopback_ = met.ok() && is_loopback(*met);
    if (met_at_loopback_) return met;
    auto chosen = RONDO_TRY(chosen_interface());
    return chosen ? std::move(*chosen) : std::move(met);
  }

  /// Every process opens its own pidfd and gives it to all others, for find_dead(). So no pidfd is
  /// that of a later process with the same pid, and ranks of other PID namespaces are watched too.
  void watch_peers(std::vector<Parcel>& all) {
    own_pidfd_.reset();
    const std::span<const int> members = hosts_.ranks_on(hosts_.host_of(star_->rank()));
    for (size_t i = 0; i < members.size(); ++i) {
      Peer& peer = near().peers()[i];
      std::vector<UniqueFd>& fds = all[static_cast<size_t>(members[i])].fds;
      const ProcessId id{.pid_namespace = peer.pid_namespace, .pid = peer.pid};
      if (!fds.empty() && !peer.same_process)
        peer.pidfd = ProcessHandle::share(id, std::move(fds.back()));
      if (peer.same_process) peer.pidfd = {};
      if (!fds.empty()) fds.pop_back();
      if (near_) peers_[static_cast<size_t>(members[i])] = peer;
    }
  }

  /// The same numbers may be other processes on other hosts.
  void know_peers(std::span<const int> members) {
    for (const Peer& peer : star_->peers()) {
      peers_.push_back({.pid = peer.pid, .pid_namespace = peer.pid_namespace});
    }
    for (size_t local = 0; local < members.size(); ++local) {
      peers_[static_cast<size_t>(members[local])] = near_->peers()[local];
    }
  }

  const milliseconds timeout_;
  Interrupt interrupt_;
  std::unique_ptr<Star> star_;
  std::unique_ptr<Star> near_;  // null: one host
  /// Where the ranks of one host have met at first. Others may still look at its connections, until an
  /// exchange shows that all have met here.
  std::unique_ptr<Star> tcp_star_;
  Star* meets_nearby_ = nullptr;  // the second, while its ranks meet
  UniqueFd own_pidfd_;            // until the first exchange
  base::HostMap hosts_;
  bool met_at_loopback_ = false;
  int rounds_ = 0;
  std::vector<RankHost> places_;               // by rank; empty: they met in a directory
  std::shared_ptr<const UniqueFd> listening_;  // at this rank's place
  std::vector<Peer> peers_;                    // where there are several hosts
};

Bootstrap::Bootstrap(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bootstrap::~Bootstrap() = default;
Bootstrap::Bootstrap(Bootstrap&&) noexcept = default;
Bootstrap& Bootstrap::operator=(Bootstrap&&) noexcept = default;

Result<Bootstrap> Bootstrap::meet(const Identity& identity, const std::string& name,
                                  milliseconds timeout, const Interrupt& interrupt,
                                  const std::function<void(const Status&)>& failing) {
  RONDO_TRY(check_name(name));
  auto impl = std::make_unique<Impl>(identity, timeout, interrupt);
  if (identity.world_size == 1) return Bootstrap(std::move(impl));
  auto rendezvous = RONDO_TRY(Rendezvous::resolve(identity, name));
  const Status status = base::guarded([&] { return impl->meet(identity, name, rendezvous); });
  if (status.ok()) return Bootstrap(std::move(impl));
  if (failing && !impl->has_heard()) failing(status);
  return status;
}

int Bootstrap::rank() const { return impl_->star().rank(); }
const std::vector<Peer>& Bootstrap::peers() const { return impl_->peers(); }
const base::HostMap& Bootstrap::hosts() const { return impl_->hosts(); }
const std::vector<RankHost>& Bootstrap::places() const { return impl_->places(); }
Result<std::vector<Parcel>> Bootstrap::all_gather(std::string_view bytes,
                                                  std::span<const int> fds) {
  return impl_->exchange(FrameKind::kGather, bytes, fds);
}
Status Bootstrap::barrier() { return impl_->exchange(FrameKind::kBarrier, {}, {}).status(); }
bool Bootstrap::is_one_process() const {
  return std::ranges::all_of(peers(), [](const Peer& peer) { return peer.same_process; });
}
int Bootstrap::rounds() const { return impl_->rounds(); }
void Bootstrap::fail(const Status& why) { (void)impl_->star().fail(why); }
void Bootstrap::close_sockets() { impl_->close_sockets(); }
std::string Bootstrap::meeting_place(int rank) const {
  if (places().empty()) return {};
  const RankHost& place = places()[static_cast<size_t>(rank)];
  return kTcpScheme + bracketed(place.address) + ":" + std::to_string(place.port);
}
const std::shared_ptr<const UniqueFd>& Bootstrap::listening() const { return impl_->listening(); }
std::vector<PeerConnection> Bootstrap::take_control() { return impl_->take_control(); }

int Bootstrap::find_dead(int first) const {
  const std::vector<Peer>& all = peers();
  std::array<pollfd, 64> batch;
  for (auto from = static_cast<size_t>(first); from < all.size(); from += batch.size()) {
    const size_t count = std::min(batch.size(), all.size() - from);
    for (size_t i = 0; i < count; ++i) batch[i] = {all[from + i].pidfd.get(), POLLIN, 0};
    if (poll(batch.data(), count, 0) <= 0) continue;
    for (size_t i = 0; i < count; ++i) {
      if (batch[i].revents != 0) return static_cast<int>(from + i);
    }
  }
  return -1;
}

}  // namespace rondo::comm
