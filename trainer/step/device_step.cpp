// See device_step.hpp.
#include "trainer/step/device_step.hpp"

#include <memory>
#include <utility>

#include "trainer/base/clock.hpp"
#include "trainer/step/control.hpp"

namespace rondo::trainer {

template <class T>
DeviceStep<T>::DeviceStep(const DeviceStepParts<T>& parts)
    : parts_(parts),
      ddp_(parts.weights.ddp()),
      loss_(parts.device, 1),
      pinned_(parts.device, 2 * kResults),
      clock_(parts.clock),
      graphs_({.options = parts.options,
               .device = parts.device,
               .communicator = parts.communicator,
               .host = parts.host,
               .ddp = ddp_,
               .full_terms = parts.options.batch * parts.options.accum * parts.model.loss_terms() *
                             static_cast<uint64_t>(parts.host.size())}) {
  parts_.device.watch([this] { return parts_.ranks_are_well(); });
}

template <class T>
DeviceStep<T>::~DeviceStep() {
  parts_.device.watch(nullptr);
  if (settled_ != nullptr) parts_.device.note(parts_.device.cuda().destroy_event(settled_));
}

template <class T>
Result<StepResult> DeviceStep<T>::run(uint64_t number, double rate) {
  data_wait_ns_ = 0;
  const DdpHeader mine = parts_.samples.header(parts_.model.loss_terms());
  RONDO_TRY(ddp_.begin(mine));
  const uint64_t micro_batches = parts_.samples.micro_batches();
  Batch batch = RONDO_TRY(read());
  // The device has the step before to do while this waits.
  const DdpStep all = RONDO_TRY(ddp_.headers());
  if (all.loss_terms == 0) return StepResult{.epoch_ended = true, .stops = stops_};
  const Pass pass{.training = true,
                  .seed = parts_.options.seed,
                  .step = number,
                  .listener = &parts_.forward,
                  .loss_factors = parts_.weights.loss_factors(),
                  .taken = true};
  // Of so many terms, of all ranks: other sizes are other products. Blocks that are left out may
  // multiply for the first time in any step.
  const bool is_first = computed_.insert(all.loss_terms).second || parts_.options.layer_drop > 0;
  parts_.keep_together(is_first);
  if (is_first) RONDO_TRY(await_quiet());
  const bool replays = RONDO_TRY(this->replays(all, pass, batch));
  clock_.step_begins(number);
  parts_.weights.begin_step(
      rate,
      {.own = mine.loss_terms, .all = all.loss_terms, .gradient_factor = parts_.gradient_factor});
  parts_.device.clear(loss_.data(), loss_.bytes());
  for (uint64_t micro = micro_batches; micro > 1; --micro) {
    parts_.model.take(batch, pass);
    if (replays) {
      graphs_.launch_quiet_pass();
    } else {
      RONDO_TRY(quiet_pass(pass, batch));
    }
    batch = RONDO_TRY(read());
  }
  parts_.model.take(batch, pass);
  if (replays) {
    graphs_.launch_last_pass();
    RONDO_TRY(ddp_.replayed());
    parts_.weights.replayed();
    clock_.replayed();
  } else {
    RONDO_TRY(last_pass(pass, batch, is_first));
  }
  const bool stops = parts_.stop.load();
  parts_.samples.mark_done();
  const StepUnderWay step{.number = number,
                          .terms = all.loss_terms,
                          .stops = stops,
                          .data_wait_ms = to_ms(data_wait_ns_),
                          .headers = ddp_.header_times(),
                          .end = RONDO_TRY(leave_results(number))};

  StepResult result{.samples = all.loss_terms / parts_.model.loss_terms(),
                    .epoch_ended = all.epoch_ended};
  const std::optional<StepUnderWay> before = std::exchange(enqueued_, step);
  if (before) result.report = RONDO_TRY(report_of(*before));
  result.stops = stops_;
  return result;
}

/// Waits for what must have ended before forward is enqueued. A product's first launch may wait for
/// everything on the GPU, other ranks' collectives included, and keep all threads from CUDA meanwhile.
template <class T>
Status DeviceStep<T>::await_quiet() {
  RONDO_TRY(settle());
  return parts_.host.barrier();
}

template <class T>
Result<Batch> DeviceStep<T>::read() {
  const int64_t begin_ns = now_ns();
  Batch batch = RONDO_TRY(parts_.samples.next());
  data_wait_ns_ += now_ns() - begin_ns;
  return batch;
}

/// Whether the step is replayed. The first that may be is captured, of whichever batch: a graph has
/// only its size.
template <class T>
Result<bool> DeviceStep<T>::replays(const DdpStep& all, const Pass& pass, const Batch& batch) {
  return graphs_.replays(all, {.prepare = [&]() -> Status {
                                 parts_.model.take(batch, pass);
                                 clock_.pause();
                                 return settle();
                               },
                               .quiet_pass = [&] { return quiet_pass(pass, batch); },
                               .last_pass = [&] { return last_pass(pass, batch, false); }});
}

/// All micro-batches but the last only add to the gradients.
template <class T>
Status DeviceStep<T>::quiet_pass(const Pass& pass, const Batch& batch) {
  const auto quiet = ddp_.no_sync();
  return compute(pass, batch);
}

/// The last micro-batch, and what follows. Each bucket of gradients travels as soon as the stream has
/// passed it, but in the first step of its size.
template <class T>
Status DeviceStep<T>::last_pass(const Pass& pass, const Batch& batch, bool is_first) {
  if (is_first) {
    RONDO_TRY(compute_first(pass, batch));
  } else {
    RONDO_TRY(compute(pass, batch));
  }
  clock_.backward_ends();
  return update();
}

/// compute() with gradients that travel when all ranks have computed theirs. A library loads code, and
/// CUDA may take memory for a kernel's stack, at the first launch, and both may wait for everything
/// that runs on the GPU: so for a collective which waits for another rank of this process, that is in
/// such a launch itself.
template <class T>
Status DeviceStep<T>::compute_first(const Pass& pass, const Batch& batch) {
  struct Notes final : BackwardNotes {
    explicit Notes(DeviceClock& watch) : clock(watch) {}
    void layer_begins(int layer) override { clock.backward_layer_begins(layer); }
    DeviceClock& clock;
  } notes(clock_);
  constexpr bool kAdds = true;
  RONDO_TRY(parts_.model.forward(batch, pass, loss_.data()));
  RONDO_TRY(parts_.model.backward(batch, pass, 1, kAdds, notes));
  RONDO_TRY(parts_.device.await_all());
  RONDO_TRY(parts_.host.barrier());
  notes.tell(ddp_);
  return {};
}

template <class T>
Status DeviceStep<T>::compute(const Pass& pass, const Batch& batch) {
  RONDO_TRY(parts_.model.forward(batch, pass, loss_.data()));
  constexpr bool kAdds = true;  // to zeros first (DeviceWeights::end_update())
  return parts_.model.backward(batch, pass, 1, kAdds, *this);
}

template <class T>
void DeviceStep<T>::gradient_ready(int parameter, size_t count) {
  ddp_.gradient_ready(static_cast<size_t>(parameter), count);
}

template <class T>
void DeviceStep<T>::gradient_skipped(int parameter) {
  ddp_.gradient_skipped(static_cast<size_t>(parameter));
}

template <class T>
Status DeviceStep<T>::update() {
  DeviceWeights<T>& weights = parts_.weights;
  if (!weights.updates_along()) {
    RONDO_TRY(ddp_.finish());
    clock_.waited();
    RONDO_TRY(weights.update());
    clock_.updated();
    if (!ddp_.is_sharded()) return {};
    // Here, not when the next step begins, so that a graph has all that it begins.
    RONDO_TRY(ddp_.wait_parameters());
    clock_.gathered();
    return {};
  }
  weights.begin_update();
  RONDO_TRY(ddp_.finish([&](size_t bucket) {
    clock_.waited(static_cast<int>(bucket));
    weights.update_bucket(bucket);
    clock_.updated(static_cast<int>(bucket));
  }));
  weights.end_update();
  return parts_.device.status();
}

template <class T>
Result<Device::Event> DeviceStep<T>::leave_results(uint64_t number) {
  Device& device = parts_.device;
  if (const auto* update = parts_.weights.result(); update != nullptr) {
    static_assert(sizeof *update == (kResults - kUpdate) * sizeof(double));
    device.copy(pinned(number) + kUpdate, update, sizeof *update);
  }
  device.copy(pinned(number) + kLoss, loss_.data(), loss_.bytes());
  const Device::Event end = clock_.step_ends();
  RONDO_TRY(device.status());
  return end;
}

template <class T>
Status DeviceStep<T>::await_event(Device::Event event) {
  RONDO_TRY(parts_.device.await(event));
  return parts_.ranks_are_well();
}

template <class T>
Status DeviceStep<T>::settle() {
  if (settled_ == nullptr) settled_ = RONDO_TRY(parts_.device.cuda().create_event());
  RONDO_TRY(parts_.device.cuda().record(settled_, parts_.device.stream()));
  RONDO_TRY(await_event(settled_));
  return parts_.device.status();
}

template <class T>
Result<StepReport> DeviceStep<T>::report_of(const StepUnderWay& step) {
  RONDO_TRY(await_event(step.end));
  const StepTimes times = clock_.times(step.number, step.data_wait_ms, step.headers);
  RONDO_TRY(parts_.device.status());
  const double* const found = pinned(step.number);
  double sums[] = {found[kLoss], step.stops ? 1.0 : 0.0};
  RONDO_TRY(parts_.host.all_reduce(sums, sums, 2, DataType::kFloat64));
  stops_ = stops_ || sums[1] > 0;
  Update update{.made = true};
  if (parts_.weights.result() != nullptr) {
    update = {.made = found[kUpdate + 1] != 0, .norm = found[kUpdate]};
  }
  return StepReport{.number = step.number,
                    .samples = step.terms / parts_.model.loss_terms(),
                    .loss = sums[0] / static_cast<double>(step.terms),
                    .update = update,
                    .times = times};
}

template <class T>
Result<std::optional<StepReport>> DeviceStep<T>::last() {
  const std::optional<StepUnderWay> step = std::exchange(enqueued_, std::nullopt);
  clock_.pause();
  if (!step) return std::optional<StepReport>();
  return std::optional<StepReport>(RONDO_TRY(report_of(*step)));
}

template class DeviceStep<float>;
template class DeviceStep<cuda::BFloat16Bits>;
template class DeviceStep<cuda::Float16Bits>;

}  // namespace rondo::trainer
