#include "comm/control/wire_to_hosts.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/bootstrap/connection/interface.hpp"
#include "comm/bootstrap/connection/tcp.hpp"

namespace rondo::comm {

Status WireToHosts::choose_devices(transport::ucx::UcxSettings& settings) const {
  const RankHost& here = bootstrap_.places()[static_cast<size_t>(bootstrap_.rank())];
  const auto chosen = RONDO_TRY(chosen_interface());
  const auto ports = RONDO_TRY(port_range());
  settings.interface = here.interface;
  settings.all_rdma = !chosen.has_value();
  settings.first_port = ports.first;
  settings.last_port = ports.last;
  return {};
}

Result<bool> WireToHosts::reaches_gpus() const {
  transport::ucx::UcxSettings settings = {.slot_bytes = 1, .places = {.on_gpu = true}};
  RONDO_TRY(choose_devices(settings));
  return transport::ucx::reaches_gpus(settings);
}

Status WireToHosts::open(transport::ucx::UcxSettings settings) {
  if (bootstrap_.hosts().hosts() == 1) return {};
  RONDO_TRY(choose_devices(settings));
  opened_ = RONDO_TRY(transport::ucx::open(settings));
  return {};
}

Result<std::unique_ptr<transport::Transport>> WireToHosts::connect(
    std::vector<std::string> addresses) {
  std::vector<transport::ucx::PeerAddress> peers(addresses.size());
  for (size_t r = 0; r < peers.size(); ++r) {
    if (bootstrap_.hosts().share_host(static_cast<int>(r), bootstrap_.rank())) continue;
    peers[r] = {.address = std::move(addresses[r]),
                .name = fmt::format("rank {} on host {}", r, bootstrap_.places()[r].name)};
  }
  return transport::ucx::connect(std::move(opened_), bootstrap_.rank(), std::move(peers));
}

}  // namespace rondo::comm
