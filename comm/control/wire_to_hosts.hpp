// Links over UCX from this rank to those of other hosts, and to no others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/bootstrap/session/bootstrap.hpp"
#include "transport/link.hpp"
#include "transport/ucx/factory.hpp"

namespace rondo::comm {

/// open(), an exchange of all ranks' address(), connect().
class WireToHosts {
 public:
  /// REQUIRES: `bootstrap` outlives it.
  explicit WireToHosts(const Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  /// Whether links can go by GPUDirect (transport::ucx::reaches_gpus()).
  Result<bool> reaches_gpus() const;
  /// Where there are other hosts. On which devices UCX is to be, and where it may listen, is chosen here.
  Status open(transport::ucx::UcxSettings settings);
  /// Empty: it is not open.
  std::string address() const { return opened_ ? opened_->address() : std::string(); }
  /// `addresses`: by rank. REQUIRES: open().
  Result<std::unique_ptr<transport::Transport>> connect(std::vector<std::string> addresses);

 private:
  Status choose_devices(transport::ucx::UcxSettings& settings) const;

  const Bootstrap& bootstrap_;
  std::unique_ptr<transport::ucx::Opened> opened_;
};

}  // namespace rondo::comm
