// See assemble.hpp.
#include "comm/setup/assemble.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "comm/bootstrap/share_segment.hpp"
#include "comm/setup/transport_decorator.hpp"
#include "comm/status/mapped_board.hpp"
#include "transport/pace/pace.hpp"

namespace rondo::comm {
namespace {

Result<std::unique_ptr<transport::Transport>> make_transport(const Config& config, int rank,
                                                             const HostSizes& sizes,
                                                             std::byte* base, bool same_process,
                                                             PeerMemory memory) {
  auto made = transport::shm::create(sizes.fifos, rank, base, std::move(memory.arenas),
                                     same_process, std::move(memory.processes));
  if (made.ok() && transport_decorator != nullptr) {
    *made = transport_decorator(std::move(*made), rank, sizes.ranks, sizes.fifos.channels);
  }
  if (!made.ok() || !sizes.paced) return made;
  return transport::pace(std::move(*made), *transport::parse_pace(config.pace));
}

engine::RunnerOptions runner_options(const HostSizes& sizes) {
  const int threads = sizes.ranks * sizes.channels;
  return {.channels = sizes.channels,
          .blocking = engine::wait_policy(threads, sizes.cpus, sizes.paced),
          .progressing = engine::progressing_policy(threads, sizes.cpus, sizes.paced),
          .cache_bytes = sizes.profile.llc_bytes / 2};
}

}  // namespace

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
  auto fifos = share_segment(bootstrap, "rondo", transport::shm::bytes_needed(sizes.fifos));
  if (!fifos.ok()) return fifos.status();
  made.fifo_segment = std::move(*fifos);
  auto transport = make_transport(config, rank, sizes, made.fifo_segment.base(),
                                  introduced.same_process, std::move(memory));
  if (!transport.ok()) return transport.status();
  made.transport = std::move(*transport);
  made.board =
      std::make_unique<board::Board>(made.board_segment.base(), sizes.ranks, rank, config.name);
  made.watch = std::make_unique<board::Watch>(
      *made.board, [&bootstrap](int first) { return bootstrap.find_dead(first); });
  engine::register_for_wakeups();
  try {
    made.runner = std::make_shared<engine::Runner>(*made.transport, *made.board, *made.watch,
                                                   runner_options(sizes));
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  fmt::format("no threads for {} channels: {}", sizes.channels, error.what()));
  }
  made.watch->show_messages_with(
      [runner = made.runner.get()](int64_t since_ns) { runner->lanes().show(since_ns); });
  return made;
}

}  // namespace rondo::comm
