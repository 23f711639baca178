// See assemble.hpp.
#include "comm/setup/assemble.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "comm/base/bytes.hpp"
#include "comm/base/clock.hpp"
#include "comm/board/mirror.hpp"
#include "comm/bootstrap/session/shared_segments.hpp"
#include "comm/control/wire_to_hosts.hpp"
#include "comm/device/process_memory.hpp"
#include "comm/setup/transport_decorator.hpp"
#include "comm/status/mapped_board.hpp"
#include "transport/pace/pace.hpp"
#include "transport/route/route.hpp"

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

/// `near`, and links to the ranks of other hosts.
MadeTransport add_hosts(const base::HostMap& hosts, int rank,
                        std::unique_ptr<transport::Transport> near, MadeTransport far) {
  RONDO_TRY(far.status());
  std::vector<int> local_ranks(static_cast<size_t>(hosts.ranks()), -1);
  for (const int member : hosts.ranks_on(hosts.host_of(rank))) {
    local_ranks[static_cast<size_t>(member)] = hosts.local_rank(member);
  }
  return transport::route(std::move(near), std::move(*far), std::move(local_ranks));
}

board::Places places_of(const Bootstrap& bootstrap) {
  board::Places places{.hosts = bootstrap.hosts(), .names = {}};
  for (int host = 0; places.several() && host < places.hosts.hosts(); ++host) {
    const int first = places.hosts.ranks_on(host).front();
    places.names.push_back(bootstrap.places()[static_cast<size_t>(first)].name);
  }
  return places;
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

/// What every rank tells the others beside its descriptors.
struct Offered {
  bool maps_arenas, copies;  // PeerMemory
  device::DeviceReach device_reach;
  std::string address;  // for other hosts
};

std::string pack(const Offered& offered) {
  base::ByteWriter packed;
  packed.put(offered.maps_arenas).put(offered.copies).put(offered.device_reach);
  return packed.put_text(offered.address).take();
}

/// Keeps in `memory` only what all ranks of this host can reach, and sets in `made` what all devices can
/// reach. Returns the addresses.
Result<std::vector<std::string>> agree(const Bootstrap& bootstrap,
                                       const std::vector<Parcel>& exchanged, PeerMemory& memory,
                                       HostLayers& made) {
  std::vector<std::string> addresses;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    base::ByteReader reader(exchanged[static_cast<size_t>(rank)].bytes);
    const auto maps_arenas = reader.get<bool>(), copies = reader.get<bool>();
    const auto reach = reader.get<device::DeviceReach>();
    addresses.emplace_back(reader.get_text());
    if (!reader.is_done()) {
      return Status(
          Code::kBootstrap,
          fmt::format("rank {} sent a set-up message that this version of rondo cannot read",
                      rank));
    }
    made.device_reach.slowest = std::max(made.device_reach.slowest, reach.slowest);
    made.device_reach.gpu_direct &= reach.gpu_direct;
    if (!bootstrap.hosts().share_host(rank, bootstrap.rank())) continue;
    if (!maps_arenas) memory.arenas.clear();
    if (!copies) memory.processes.clear();
  }
  return addresses;
}

/// Exchanges all descriptors. Of `made`, the segments and what concerns devices, and the transport.
Status connect(Bootstrap& bootstrap, const Config& config, const Agreement& settled,
               PeerMemory memory, const device::OpenedDevice* gpu, HostLayers& made) {
  const HostSizes& sizes = settled.sizes;
  const base::HostMap& hosts = bootstrap.hosts();
  // Several segments, so that a launcher that keeps the board does not keep the FIFOs.
  SharedSegments segments(bootstrap);
  RONDO_TRY(segments.add(status::kBoardName, board::Board::bytes_needed(sizes.ranks)));
  RONDO_TRY(segments.add("rondo", fifo_segment_bytes(sizes)));
  WireToHosts wire(bootstrap);
  RONDO_TRY(wire.open(
      {.channels = sizes.fifos.channels, .depth = sizes.depth, .slot_bytes = sizes.slot_bytes}));
  Offered own{.maps_arenas = !memory.arenas.empty(),
              .copies = !memory.processes.empty(),
              .device_reach = {},
              .address = wire.address()};
  if (gpu != nullptr) {
    RONDO_TRY(segments.add("rondo-device", device::ProcessMemory::control_bytes(sizes.ranks)));
    std::vector<device::DeviceFacts> all;
    for (const RankFacts& each : settled.ranks) all.push_back(each.gpu);
    own.device_reach = RONDO_TRY(device::find_reach(*gpu, all, hosts, bootstrap.rank(),
                                                    [&] { return wire.reaches_gpus(); }));
  }
  made.device_reach = own.device_reach;
  auto exchanged = RONDO_TRY(bootstrap.all_gather(pack(own), segments.fds()));
  auto addresses = RONDO_TRY(agree(bootstrap, exchanged, memory, made));
  auto mapped = RONDO_TRY(segments.take(exchanged));
  made.board_segment = std::move(mapped[0]);
  made.fifo_segment = std::move(mapped[1]);
  if (gpu != nullptr) made.device_control = std::move(mapped[2]);
  auto transport =
      connect_host(config, hosts.local_rank(bootstrap.rank()), sizes, made.fifo_segment.base(),
                   bootstrap.is_one_process(), std::move(memory));
  if (transport.ok() && hosts.hosts() > 1) {
    transport = add_hosts(hosts, bootstrap.rank(), std::move(*transport),
                          wire.connect(std::move(addresses)));
  }
  made.transport = RONDO_TRY(std::move(transport));
  return {};
}

}  // namespace

Result<HostLayers> assemble(Bootstrap& bootstrap, const Config& config, const Agreement& settled,
                            PeerMemory memory, const device::OpenedDevice* gpu) {
  HostLayers made;
  RONDO_TRY(connect(bootstrap, config, settled, std::move(memory), gpu, made));
  made.board = std::make_unique<board::Board>(made.board_segment.base(), settled.sizes.ranks,
                                              bootstrap.rank(), config.name, places_of(bootstrap));
  introduce_others(bootstrap, *made.board);
  made.watch = std::make_unique<board::Watch>(
      *made.board, [&bootstrap](int first) { return bootstrap.find_dead(first); });
  if (settled.sizes.paced) made.watch->mention_pace(config.pace);
  engine::register_for_wakeups();
  try {
    made.runner = std::make_shared<engine::Runner>(
        *made.transport, *made.board, *made.watch,
        runner_options(settled.sizes, bootstrap.hosts().hosts() > 1));
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, fmt::format("no threads for {} channels: {}",
                                                        settled.sizes.channels, error.what()));
  }
  made.watch->show_messages_with(
      [runner = made.runner.get()](int64_t since_ns) { runner->lanes().show(since_ns); });
  return made;
}

}  // namespace rondo::comm
