// Which buffers of an operation peers can access: what direct algorithms ask before each operation.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "comm/algorithms/algorithm.hpp"
#include "comm/device/device_runner.hpp"
#include "rondo/log.hpp"

namespace rondo::device {

Result<DeviceRunner::ForPeers> DeviceRunner::are_for_peers(const engine::Operation& operation) {
  const engine::Prepared& prepared = *operation.prepared;
  ForPeers found = {.all = true};
  if (!asks(prepared)) return found;
  const engine::ExecutionPlan& plan = *prepared.direct;
  struct TouchedBuffer {
    const std::byte* memory;
    size_t bytes;
    algorithms::Touched touched;
    transport::cuda_ipc::RegistrationWord& registration;
  };
  const TouchedBuffer buffers[] = {
      {operation.in, prepared.in_bytes, plan.touched_in, found.registrations.in},
      {operation.out, prepared.out_bytes, plan.touched_out, found.registrations.out}};
  for (const auto& [memory, bytes, touched, registration] : buffers) {
    if (bytes == 0 || !algorithms::is_touched(touched, bootstrap_.rank(), prepared.call.root)) {
      continue;
    }
    bool one = true;
    if (reaches_buffers_) {
      one = RONDO_TRY(cuda_.is_for_peers(memory));
    } else {
      registration = registrations_->find(memory, bytes);
      one = registration != 0;
    }
    found.all = found.all && one;
  }
  if (!found.all) RONDO_TRY(explain_slots(prepared));
  return found;
}

Status DeviceRunner::explain_slots(const engine::Prepared& prepared) {
  const char* const why =
      reaches_buffers_ ? "comes from a pool (cudaMallocAsync) or was mapped by cuMemMap, which "
                         "other GPUs cannot access"
                       : "is not in registered memory, which ranks of other processes can access";
  const char* const mend = reaches_buffers_ ? "allocate it by cudaMalloc"
                                            : "register it on every rank (register_device_memory)";
  if (prepared.required) {
    return {Code::kUnavailable,
            fmt::format("{} by {} needs buffers that other GPUs can access, and one of rank {}'s "
                        "{}: {}, or leave the algorithm to rondo",
                        prepared.call.to_string(), name(prepared.direct->algorithm), board_.rank(),
                        why, mend)};
  }
  if (!std::exchange(has_told_of_slots_, true)) {
    log(LogLevel::kInfo, fmt::format("a buffer of rank {}'s {}: such operations go through slots. "
                                     "To make them faster, {}",
                                     board_.rank(), why, mend));
  }
  return {};
}

}  // namespace rondo::device
