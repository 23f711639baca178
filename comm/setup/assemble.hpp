// Setup, fifth step: the shared segments and the host's layers over them.
#pragma once

#include <memory>

#include "comm/board/board.hpp"
#include "comm/device/opened_device.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/runner.hpp"
#include "comm/setup/reach.hpp"
#include "comm/setup/settle.hpp"
#include "transport/link.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::comm {

/// Each layer uses those before it.
struct HostLayers {
  transport::Segment board_segment;
  transport::Segment fifo_segment;
  transport::Segment device_control;  // of ProcessMemory::control_bytes(), where there are devices
  device::DeviceReach device_reach{};
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<board::Board> board;
  std::unique_ptr<board::Watch> watch;
  std::shared_ptr<engine::Runner> runner;
};

/// Every rank calls it at the same point. Takes one exchange, in which ranks give all descriptors.
/// `config`: with rank 0's settings, and the name that readers of the board see. `gpu`: null without a
/// device. REQUIRES: `bootstrap` outlives the layers. kUnavailable: several hosts, and nothing that
/// connects them. kResourceExhausted: no memory, no threads.
Result<HostLayers> assemble(Bootstrap& bootstrap, const Config& config, const Agreement& settled,
                            PeerMemory memory, const device::OpenedDevice* gpu);

}  // namespace rondo::comm
