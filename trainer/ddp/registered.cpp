// See registered.hpp.
#include "trainer/ddp/registered.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rondo/log.hpp"
#include "trainer/ddp/gpu.hpp"

namespace rondo::ddp {

bool is_worth_registering(const Communicator& communicator) {
  const std::vector<int> hosts = communicator.hosts();
  const bool one_host = std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
  if (communicator.size() == 1 || !one_host) return false;
  // What buffers that nobody has registered could do.
  constexpr bool kRegistered = false;
  const Plan plan = communicator.plan(Collective::kAllReduce, 1, DataType::kFloat32, kRegistered,
                                      Algorithm::kOneShotDirect);
  return plan.algorithm != Algorithm::kOneShotDirect;
}

Status RegisteredMemory::add(std::span<std::byte> memory) {
  if (is_refused_) return {};
  if (!meeting_) {
    // Before the first registration: whoever comes so far meets the others at the end.
    Result<std::optional<Communicator>> made =
        routes_.host.split(0, routes_.host.rank(), "ddp memory");
    RONDO_TRY(made.status());
    meeting_ = std::move(*made);
  }
  all_.push_back(memory);
  const Status status = routes_.data.register_device_memory(memory.data(), memory.size());
  if (status.code() != Code::kUnavailable && status.code() != Code::kResourceExhausted) {
    return status;
  }
  is_refused_ = true;
  all_.pop_back();
  if (all_.empty()) meeting_.reset();
  if (routes_.data.rank() == 0) {
    log(LogLevel::kInfo,
        fmt::format("gradients and parameters in the memory of GPUs are reduced and gathered "
                    "through slots instead of in place, because they cannot be registered: {}",
                    status.message()));
  }
  return {};
}

RegisteredMemory::~RegisteredMemory() {
  if (!meeting_) return;
  const bool ended = routes_.gpu->end();
  for (const auto& memory : all_) (void)routes_.data.unregister_device_memory(memory.data());
  // Tries again to let go of peers' memory, if CUDA has failed in between.
  (void)routes_.data.status();
  if (!ended) return;  // which has left everything

  const Status met = meeting_->barrier({.stall_timeout = patience_});
  if (met.ok()) return;
  size_t bytes = 0;
  for (const auto& memory : all_) {
    routes_.gpu->leave(memory.data());
    bytes += memory.size();
  }
  // Of a rank that has ended the program knows already.
  log(met.code() == Code::kTimeout ? LogLevel::kWarn : LogLevel::kInfo,
      fmt::format("rank {}: the memory of its DistributedDataParallel on GPU {}, {} bytes, is left "
                  "until the process ends, because other ranks may still map it. Destroy the "
                  "object on all ranks at the same time. ({})",
                  routes_.data.rank(), routes_.data.device(), bytes, met.message()));
}

}  // namespace rondo::ddp
