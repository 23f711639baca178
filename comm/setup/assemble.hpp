// Setup, last step: the shared segments and the host's layers over them.
#pragma once

#include <memory>

#include "comm/board/board.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/runner.hpp"
#include "comm/setup/reach.hpp"
#include "comm/setup/sizes.hpp"
#include "transport/link.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::comm {

/// Each layer uses those before it.
struct HostLayers {
  transport::Segment board_segment;
  transport::Segment fifo_segment;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<board::Board> board;
  std::unique_ptr<board::Watch> watch;
  std::shared_ptr<engine::Runner> runner;
};

/// Every rank calls it at the same point. kUnavailable: several hosts, and nothing that connects them. `config`: with rank 0's settings, and the name that readers
/// of the board see. REQUIRES: `bootstrap` outlives the layers. kResourceExhausted: no memory, no
/// threads.
Result<HostLayers> assemble(Bootstrap& bootstrap, const Config& config,
                            const Introduced& introduced, const HostSizes& sizes,
                            PeerMemory memory);

}  // namespace rondo::comm
