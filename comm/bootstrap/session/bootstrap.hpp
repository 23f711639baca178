// How the ranks of one communicator find and authenticate each other, and what they exchange before
// shared memory exists. Ranks that meet in a directory share a host. Ranks that meet over TCP find
// out who does, and the ranks of each host meet again at a unix socket. For a few kilobytes and a
// few descriptors per rank, never for payload. No wait is unbounded, and a failure of one rank
// reaches all.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/host_map.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/identity/host.hpp"
#include "comm/bootstrap/session/rank_exchange.hpp"
#include "comm/bootstrap/session/star.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// The meeting of one communicator's ranks. One thread at a time; every rank calls the same
/// operations in the same order. Each operation takes at most the timeout given to meet(). The
/// first failure sticks, and reaches every rank by its next operation. A world of one opens
/// nothing.
class Bootstrap : public RankExchange {
 public:
  /// Blocks until all ranks of `identity.world_size` have come, or `timeout`. `name` (letters,
  /// digits, '_', '-', '.', at most 64) tells communicators of one job apart; a name may be used
  /// again once its last meeting has ended. `interrupt` may end this and every later wait early,
  /// until close_sockets(). `failing` is called when this rank fails to meet, unless another has
  /// told it why. Throws only before another rank can have seen this one, which may then come again.
  static Result<Bootstrap> meet(const Identity& identity, const std::string& name,
                                std::chrono::milliseconds timeout, const Interrupt& interrupt = {},
                                const std::function<void(const Status&)>& failing = {});
  ~Bootstrap() override;
  Bootstrap(Bootstrap&&) noexcept;
  Bootstrap& operator=(Bootstrap&&) noexcept;

  int rank() const override;
  /// Whose processes are known, and watched from the first exchange on.
  const std::vector<Peer>& peers() const;
  /// Whether all ranks are threads of this process.
  bool is_one_process() const;
  /// How often the ranks have waited for each other here, meeting included.
  int rounds() const;

  /// Which ranks share a host, and what each rank said of its own.
  const base::HostMap& hosts() const override;
  const std::vector<RankHost>& places() const;

  /// Ranks that have met over TCP: where they can meet as another communicator whose rank 0 is `rank`,
  /// and that one's socket there (this rank's; open as long as the Bootstrap). Else empty.
  std::string meeting_place(int rank) const;
  const std::shared_ptr<const transport::UniqueFd>& listening() const;

  Result<std::vector<Parcel>> all_gather(std::string_view bytes,
                                         std::span<const int> fds = {}) override;
  Status barrier();

  /// This rank fails: the other ranks' current or next operation returns `why`, with this rank's
  /// number before the message. Never waits.
  void fail(const Status& why);

  /// The first rank of this host, from `first` on, whose process has ended, or -1. Never blocks;
  /// works after close_sockets(). Any thread.
  int find_dead(int first = 0) const;
  /// Closes the sockets; peers() stay. Every rank calls it after the same operation.
  void close_sockets();

  /// Before close_sockets(), where there are several hosts: on rank 0 the connections to the first
  /// rank of each other host, in order; on these the one to rank 0; else nothing.
  std::vector<PeerConnection> take_control();

 private:
  class Impl;
  explicit Bootstrap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo::comm
