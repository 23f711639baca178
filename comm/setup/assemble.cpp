// See assemble.hpp.
#include "comm/setup/assemble.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/board/mirror.hpp"
#include "comm/bootstrap/interface.hpp"
#include "comm/bootstrap/share_segment.hpp"
#include "comm/bootstrap/tcp.hpp"
#include "comm/setup/transport_decorator.hpp"
#include "comm/status/mapped_board.hpp"
#include "transport/pace/pace.hpp"
#include "transport/route/route.hpp"
#include "transport/ucx/factory.hpp"

namespace rondo::comm {
namespace {

using MadeTransport = Result<std::unique_ptr<transport::Transport>>;

/// Where the wires of a pace begin: behind the FIFOs.
size_t wires_begin(const HostSizes& sizes) {
  constexpr size_t kLine = 64;
  return (transport::shm::bytes_needed(sizes.fifos) + kLine - 1) / kLine * kLine;
}

size_t fifo_segment_bytes(const HostSizes& sizes) {
  if (!sizes.paced) return transport::shm::bytes_needed(sizes.fifos);
  return wires_begin(sizes) + transport::wires_bytes(sizes.local_ranks, sizes.fifos.channels);
}

/// Between the ranks of this host, by their local ranks. A pace is for these links: hosts' clocks
/// differ.
MadeTransport connect_host(const Config& config, int local_rank, const HostSizes& sizes,
                           std::byte* base, bool same_process, PeerMemory memory) {
  auto made = transport::shm::create(sizes.fifos, local_rank, base, std::move(memory.arenas),
                                     same_process, std::move(memory.processes));
  if (made.ok() && transport_decorator != nullptr) {
    *made =
        transport_decorator(std::move(*made), local_rank, sizes.local_ranks, sizes.fifos.channels);
  }
  if (!made.ok() || !sizes.paced) return made;
  return transport::pace(std::move(*made), *transport::parse_pace(config.pace),
                         {.base = base + wires_begin(sizes),
                          .ranks = sizes.local_ranks,
                          .channels = sizes.fifos.channels,
                          .rank = local_rank});
}

/// `near`, and links over UCX to the ranks of other hosts.
MadeTransport add_hosts(Bootstrap& bootstrap, const HostSizes& sizes,
                        std::unique_ptr<transport::Transport> near) {
  auto far = connect_hosts(
      bootstrap,
      {.channels = sizes.fifos.channels, .depth = sizes.depth, .slot_bytes = sizes.slot_bytes});
  if (!far.ok()) return far.status();
  const base::HostMap& hosts = bootstrap.hosts();
  std::vector<int> local_ranks(static_cast<size_t>(hosts.ranks()), -1);
  for (const int rank : hosts.ranks_on(hosts.host_of(bootstrap.rank()))) {
    local_ranks[static_cast<size_t>(rank)] = hosts.local_rank(rank);
  }
  return transport::route(std::move(near), std::move(*far), std::move(local_ranks));
}

/// On which devices UCX is to be, and where it may listen.
Status choose_devices(const Bootstrap& bootstrap, transport::ucx::UcxSettings& settings) {
  const RankHost& here = bootstrap.places()[static_cast<size_t>(bootstrap.rank())];
  const auto chosen = RONDO_TRY(chosen_interface());
  const auto ports = RONDO_TRY(port_range());
  settings.interface = here.interface;
  settings.all_rdma = !chosen.has_value();
  settings.first_port = ports.first;
  settings.last_port = ports.last;
  return {};
}

board::Places places_of(const Bootstrap& bootstrap) {
  board::Places places{.hosts = bootstrap.hosts(), .names = {}};
  for (int host = 0; places.several() && host < places.hosts.hosts(); ++host) {
    const int first = places.hosts.ranks_on(host).front();
    places.names.push_back(bootstrap.places()[static_cast<size_t>(first)].name);
  }
  return places;
}

/// Of this host by its process, of another host by what its agent says.
int find_dead(const Bootstrap& bootstrap, const board::Board& board, int first) {
  const int here = bootstrap.find_dead(first);
  if (!board.places().several()) return here;
  for (int rank = first; rank < board.ranks() && rank != here; ++rank) {
    const auto life = board.state(rank).life.load(std::memory_order_acquire);
    if (!board.is_local(rank) && life >= static_cast<uint32_t>(board::Life::kLost)) return rank;
  }
  return here;
}

/// By the first rank of this host, for all: what is known before the first rows come.
void introduce_others(const Bootstrap& bootstrap, const board::Board& board) {
  if (!board.places().several() || !bootstrap.is_first_on_host()) return;
  const board::Mirror mirror(board);
  for (int rank = 0; rank < board.ranks(); ++rank) {
    if (board.is_local(rank)) continue;
    const Peer& peer = bootstrap.peers()[static_cast<size_t>(rank)];
    mirror.introduce(rank, static_cast<int32_t>(peer.pid), peer.pid_namespace,
                     bootstrap.places()[static_cast<size_t>(rank)].boot_id);
  }
  mirror.show_agent(base::now_ns());
}

engine::RunnerOptions runner_options(const HostSizes& sizes, bool several_hosts) {
  const int threads = sizes.local_ranks * sizes.channels;
  const auto over_links = [&](engine::WaitPolicy policy) {
    return several_hosts ? engine::over_wire(policy) : policy;
  };
  return {.channels = sizes.channels,
          .blocking = over_links(engine::wait_policy(threads, sizes.cpus, sizes.paced)),
          .progressing = over_links(engine::progressing_policy(threads, sizes.cpus, sizes.paced)),
          .cache_bytes = sizes.profile.llc_bytes / 2};
}

}  // namespace

Result<bool> wire_reaches_gpus(const Bootstrap& bootstrap) {
  transport::ucx::UcxSettings settings = {.slot_bytes = 1, .places = {.on_gpu = true}};
  RONDO_TRY(choose_devices(bootstrap, settings));
  return transport::ucx::reaches_gpus(settings);
}

MadeTransport connect_hosts(Bootstrap& bootstrap, transport::ucx::UcxSettings settings) {
  const base::HostMap& hosts = bootstrap.hosts();
  RONDO_TRY(choose_devices(bootstrap, settings));
  auto opened = transport::ucx::open(settings);
  if (!opened.ok()) return opened.status();
  auto addresses = bootstrap.all_gather((*opened)->address());
  if (!addresses.ok()) return addresses.status();
  std::vector<transport::ucx::PeerAddress> peers(addresses->size());
  for (int rank = 0; rank < hosts.ranks(); ++rank) {
    if (hosts.share_host(rank, bootstrap.rank())) continue;
    const auto r = static_cast<size_t>(rank);
    peers[r] = {.address = std::move((*addresses)[r]),
                .name = fmt::format("rank {} on host {}", rank, bootstrap.places()[r].name)};
  }
  return transport::ucx::connect(std::move(*opened), bootstrap.rank(), std::move(peers));
}

Result<HostLayers> assemble(Bootstrap& bootstrap, const Config& config,
                            const Introduced& introduced, const HostSizes& sizes,
                            PeerMemory memory) {
  const int rank = bootstrap.rank();
  HostLayers made;
  // Two segments, so that a launcher that keeps the board does not keep the FIFOs.
  auto board =
      share_segment(bootstrap, status::kBoardName, board::Board::bytes_needed(sizes.ranks));
  if (!board.ok()) return board.status();
  made.board_segment = std::move(*board);
  auto fifos = share_segment(bootstrap, "rondo", fifo_segment_bytes(sizes));
  if (!fifos.ok()) return fifos.status();
  made.fifo_segment = std::move(*fifos);
  const base::HostMap& hosts = bootstrap.hosts();
  auto transport = connect_host(config, hosts.local_rank(rank), sizes, made.fifo_segment.base(),
                                introduced.same_process, std::move(memory));
  if (transport.ok() && hosts.hosts() > 1) {
    transport = add_hosts(bootstrap, sizes, std::move(*transport));
  }
  if (!transport.ok()) return transport.status();
  made.transport = std::move(*transport);
  made.board = std::make_unique<board::Board>(made.board_segment.base(), sizes.ranks, rank,
                                              config.name, places_of(bootstrap));
  introduce_others(bootstrap, *made.board);
  made.watch = std::make_unique<board::Watch>(*made.board,
                                              [&bootstrap, board = made.board.get()](int first) {
                                                return find_dead(bootstrap, *board, first);
                                              });
  if (sizes.paced) made.watch->mention_pace(config.pace);
  engine::register_for_wakeups();
  try {
    made.runner = std::make_shared<engine::Runner>(*made.transport, *made.board, *made.watch,
                                                   runner_options(sizes, hosts.hosts() > 1));
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  fmt::format("no threads for {} channels: {}", sizes.channels, error.what()));
  }
  made.watch->show_messages_with(
      [runner = made.runner.get()](int64_t since_ns) { runner->lanes().show(since_ns); });
  return made;
}

}  // namespace rondo::comm
