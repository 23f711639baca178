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
#include "transport/ucx/factory.hpp"

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

/// Links over UCX from this rank to those of other hosts, and to no others. `settings`: of the links;
/// what says where UCX may listen is chosen here. Every rank calls it at the same point.
Result<std::unique_ptr<transport::Transport>> connect_hosts(Bootstrap& bootstrap,
                                                            transport::ucx::UcxSettings settings);

/// Whether these links can go by GPUDirect (transport::ucx::reaches_gpus()).
Result<bool> wire_reaches_gpus(const Bootstrap& bootstrap);

}  // namespace rondo::comm
