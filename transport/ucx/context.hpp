// A rank's UCX context and workers: what exists before the ranks know each other.
#pragma once

#include <sys/types.h>

#include <limits>
#include <string>
#include <vector>

#include "transport/ucx/calls.hpp"
#include "transport/ucx/factory.hpp"

namespace rondo::transport::ucx {

/// Owns one worker per channel, and their context, or one for each where it has its own port. Each worker is used by one thread at a time. In a
/// forked child the destructor leaves them alone.
class UcxContext final : public Opened {
 public:
  explicit UcxContext(const Settings& settings);
  ~UcxContext() override;
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  Status open();
  /// Instead of open(): see factory.hpp.
  Result<bool> reaches_gpus();

  const std::string& address() const override { return address_; }
  const Settings& settings() const { return settings_; }
  const Calls& calls() const { return *calls_; }
  ucp_worker_h worker(size_t channel) const { return workers_[channel]; }
  /// From this size on UCX sends a message from where it lies, and finishes it when the last byte has
  /// left for the socket. SIZE_MAX: unknown.
  size_t uncopied_bytes() const { return uncopied_bytes_; }
  bool is_forked_copy() const;
  /// From now on the destructor leaves UCX's objects alone: some endpoint did not close in time.
  void abandon() { abandoned_ = true; }

 private:
  bool uses_only_tcp() const;
  Status configure(ucp_config_t* config, int port);
  Status make_context(int port);
  ucs_status_t create_worker();
  Status make_worker();
  Status make_worker_at_a_port();
  Status append_address(ucp_worker_h worker);
  Status failed(const std::string& doing, ucs_status_t status) const;

  const Settings settings_;
  const pid_t owner_;
  const Calls* calls_ = nullptr;
  std::vector<ucp_context_h> contexts_;
  std::vector<ucp_worker_h> workers_;
  std::string address_;
  size_t uncopied_bytes_ = std::numeric_limits<size_t>::max();
  bool abandoned_ = false;
};

/// The worker addresses of a peer, one per channel, out of what its Opened::address() gave.
/// `settings` and `own`, this rank's address: what the peer's must agree with.
Result<std::vector<std::string>> split_address(const PeerAddress& peer, const Settings& settings,
                                               const std::string& own);

}  // namespace rondo::transport::ucx
