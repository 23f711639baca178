// Operations on a GPU: each is enqueued on the caller's stream. What ranks tell each other in host
// memory, and the record of what they do, is borrowed from the executor of the host.
#pragma once

#include <memory>
#include <string>

#include "comm/bootstrap/session/bootstrap.hpp"
#include "comm/device/device_runner.hpp"
#include "comm/executor.hpp"
#include "comm/host_executor.hpp"
#include "comm/setup/assemble.hpp"
#include "comm/setup/settle.hpp"

namespace rondo::comm {

/// What a communicator has when its GPU is set up. Borrowed; the first four outlive the executor.
struct DeviceExecutorParts {
  Bootstrap& bootstrap;
  board::Board& board;
  board::Watch& watch;
  HostExecutor& host;
  const Config& config;
  const Agreement& settled;
  const std::string& title;
};

class DeviceExecutor final : public Executor {
 public:
  /// Collective, like the rest of the set-up. Takes what `layers` has of the device.
  static Result<std::shared_ptr<DeviceExecutor>> create(const DeviceExecutorParts& parts,
                                                        device::OpenedDevice gpu,
                                                        HostLayers& layers);

  Status refusal(std::string_view call, const CallOptions& options,
                 bool asynchronous) const override;
  Status refusal(const engine::Transfer& message) const override;
  Status run(engine::Operation& operation) override;
  Status run_group(Group& group, bool* begun) override;
  void drain() override { host_.drain(); }
  bool is_idle() const override { return runner_->has_ended(); }
  Status error(bool thorough) override { return runner_->check(thorough); }
  void abort() const override { runner_->abort(); }
  Status withdraw() noexcept override;
  bool reaches_buffers(bool direct) const override { return direct || runner_->reaches_buffers(); }
  const char* direct_memory() const override { return "registered"; }
  Status can_shrink() const override;
  Status register_memory(void* pointer, size_t bytes) override;
  Status unregister_memory(void* pointer) override;
  uint64_t bytes_sent() const override { return host_.bytes_sent() + runner_->bytes_sent(); }

 private:
  DeviceExecutor(std::unique_ptr<device::DeviceRunner> runner, HostExecutor& host,
                 const PlanLimits& limits, int64_t timeout_ns)
      : Executor(limits, timeout_ns), host_(host), runner_(std::move(runner)) {}
  Status enqueue(const engine::Operation& operation);
  /// What every rank says of a registration, by rank.
  template <class Word>
  Result<std::vector<Word>> exchange(const Word& own);

  HostExecutor& host_;
  const std::unique_ptr<device::DeviceRunner> runner_;
};

}  // namespace rondo::comm
