// See device_replica.hpp.
#include "trainer/step/device_replica.hpp"

#include <spdlog/spdlog.h>

#include <utility>

#include "trainer/base/clock.hpp"
#include "trainer/step/step_graphs.hpp"

namespace rondo::trainer {

DeviceReplica::DeviceReplica(const DeviceReplicaParts& parts)
    : parts_(parts),
      ddp_(parts.weights.ddp()),
      star_{.algorithm = kStarCall.algorithm, .stream = parts.device.stream()},
      loss_(parts.device, 1),
      results_(parts.device, 1) {
  parts_.device.watch([this] { return parts_.communicator.status(); });
}

DeviceReplica::~DeviceReplica() {
  Device& device = parts_.device;
  device.watch(nullptr);
  (void)device.wait();
  for (const Device::Event event : moments_) {
    if (event != nullptr) device.note(device.cuda().destroy_event(event));
  }
}

Status DeviceReplica::begin() {
  if (is_root()) {
    spdlog::info("rank 0 computes on GPU {}: {}", parts_.device.number(), parts_.device.name());
  }
  for (Device::Event& event : moments_)
    event = RONDO_TRY(parts_.device.cuda().create_timed_event());
  RONDO_TRY(parts_.weights.upload(parts_.mirror));
  fetched_ = parts_.weights.updates();
  return {};
}

Result<ReplicaStep> DeviceReplica::step(const ReplicaShare& share) {
  const Pass pass{
      .training = true, .seed = parts_.options.seed, .step = share.number, .taken = true};
  // Other sizes are other products. A library loads code at a product's first launch, and may wait for
  // everything that runs on the GPU: so for a collective that waits for another rank of this process.
  const bool is_first = computed_.insert(share.all_terms).second;
  parts_.model.take(share.batch, pass);
  RONDO_TRY(send_parameters());
  mark(kScattered);
  // A pass may be more launches than CUDA takes behind a collective that waits, and then it holds the
  // thread up, perhaps with a lock that the root needs: every rank has launched that collective first.
  RONDO_TRY(is_first ? meet() : parts_.host.barrier());
  RONDO_TRY(compute(share.batch, pass));
  mark(kComputed);
  if (is_first) RONDO_TRY(meet());
  RONDO_TRY(gather());
  mark(kGathered);
  if (is_root()) RONDO_TRY(update(share));
  mark(kEnds);
  RONDO_TRY(parts_.device.await(moments_[kEnds]));
  RONDO_TRY(parts_.communicator.status());

  ReplicaStep made{.end_ns = now_ns()};
  made.scattered_ns = made.end_ns - RONDO_TRY(ns_to_end(kScattered));
  made.computed_ns = made.end_ns - RONDO_TRY(ns_to_end(kComputed));
  made.gathered_ns = made.end_ns - RONDO_TRY(ns_to_end(kGathered));
  if (!is_root()) return made;
  const StepResults& found = *results_.data();
  made.loss = found.loss;
  if (parts_.weights.result() != nullptr) {
    made.update = {.made = found.update.made != 0, .norm = found.update.norm};
  }
  return made;
}

Status DeviceReplica::send_parameters() {
  const auto send = [&](void* data, size_t count) {
    return parts_.communicator.broadcast(data, data, count, DataType::kFloat32, kReplicaRoot,
                                         star_);
  };
  RONDO_TRY(send(ddp_.parameters(), ddp_.parameter_elements()));
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    RONDO_TRY(send(ddp_.buffer(b), ddp_.buffers()[b].count()));
  }
  return parts_.device.status();
}

Status DeviceReplica::compute(const Batch& batch, const Pass& pass) {
  parts_.device.clear(loss_.data(), loss_.bytes());
  RONDO_TRY(parts_.model.forward(batch, pass, loss_.data()));
  UsedParameters used(ddp_);
  // Writes: where no update follows, nothing has cleared what the last pass left.
  constexpr bool kAdds = false;
  return parts_.model.backward(batch, pass, 1, kAdds, used);
}

/// The sums of the loss and of the gradients, which the update divides.
Status DeviceReplica::gather() {
  RONDO_TRY(parts_.communicator.reduce(loss_.data(), loss_.data(), 1, DataType::kFloat64,
                                       ReduceOp::kSum, kReplicaRoot, star_));
  return parts_.communicator.reduce(ddp_.gradients(), ddp_.gradients(), ddp_.parameter_elements(),
                                    DataType::kFloat32, ReduceOp::kSum, kReplicaRoot, star_);
}

Status DeviceReplica::update(const ReplicaShare& share) {
  DeviceWeights<float>& weights = parts_.weights;
  weights.begin_step(share.rate, {.own = share.all_terms, .all = share.all_terms});
  RONDO_TRY(weights.update());
  StepResults* const results = results_.data();
  parts_.device.copy(&results->loss, loss_.data(), loss_.bytes());
  if (const auto* made = weights.result(); made != nullptr) {
    parts_.device.copy(&results->update, made, sizeof *made);
  }
  return parts_.device.status();
}

/// When every rank's stream is through.
Status DeviceReplica::meet() {
  RONDO_TRY(parts_.device.await_all());
  return parts_.host.barrier();
}

void DeviceReplica::mark(ReplicaMoment moment) {
  Device& device = parts_.device;
  if (device.status().ok()) device.note(device.cuda().record(moments_[moment], device.stream()));
}

Result<int64_t> DeviceReplica::ns_to_end(ReplicaMoment moment) {
  const float ms = RONDO_TRY(parts_.device.cuda().elapsed_ms(moments_[moment], moments_[kEnds]));
  return static_cast<int64_t>(double{ms} * 1e6);
}

/// And then an evaluation may be the first of its size, as above.
Status DeviceReplica::replicate() {
  RONDO_TRY(send_parameters());
  return meet();
}

Status DeviceReplica::fetch() {
  const uint64_t updates = parts_.weights.updates();
  if (std::exchange(fetched_, updates) == updates) return {};
  return parts_.weights.download(parts_.mirror);
}

void DeviceReplica::describe(nlohmann::ordered_json& summary) const {
  summary["device"] = parts_.device.name();
  summary["replayed_steps"] = 0;
}

}  // namespace rondo::trainer
