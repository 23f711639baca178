// See device_control.hpp.
#include "trainer/step/device_control.hpp"

namespace rondo::trainer {

template <class T>
DeviceControl<T>::DeviceControl(const DeviceStepParts<T>& parts, const Dataset& data)
    : parts_(parts),
      data_(data),
      ddp_(parts.weights.ddp()),
      clock_(parts.device, nullptr, {}, false),
      loss_(parts.device, 1) {
  for (const DdpTensor& buffer : ddp_.buffers()) {
    buffers_.emplace_back(parts_.device, buffer.count());
  }
  parts_.device.watch([this] { return parts_.ranks_are_well(); });
}

template <class T>
DeviceControl<T>::~DeviceControl() {
  parts_.device.watch(nullptr);
}

template <class T>
Result<ControlTimes> DeviceControl<T>::run() {
  const std::unique_ptr<Loader> loader =
      RONDO_TRY(open_control_loader(parts_.options, data_, parts_.samples.sampler()));
  batch_ = RONDO_TRY(loader->next());
  Device& device = parts_.device;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    device.copy(buffers_[b].data(), ddp_.buffer(b), buffers_[b].bytes());
  }
  const ControlTimes times = RONDO_TRY(control_rounds(
      *parts_.options.control_steps, [this] { return compute(); },
      [this] { return compute_then_reduce(); }));
  device.clear(ddp_.gradients(), ddp_.gradient_elements() * sizeof(T));
  for (size_t b = 0; b < buffers_.size(); ++b) {
    device.copy(ddp_.buffer(b), buffers_[b].data(), buffers_[b].bytes());
  }
  RONDO_TRY(device.status());
  return times;
}

template <class T>
Result<double> DeviceControl<T>::compute() {
  RONDO_TRY(parts_.host.barrier());
  clock_.step_begins(++measured_);
  const TrainOptions& o = parts_.options;
  const uint64_t terms = batch_.size * parts_.model.loss_terms() * o.accum;
  // Rate and all ranks' terms are an update's.
  parts_.weights.begin_step(0, {.own = terms, .all = 1});
  const Pass pass{.training = true,
                  .seed = o.seed,
                  .step = 0,
                  .loss_factors = parts_.weights.loss_factors(),
                  .taken = true};
  parts_.keep_together(measured_ == 1);
  for (uint64_t micro = 0; micro < o.accum; ++micro) {
    parts_.model.take(batch_, pass);
    RONDO_TRY(parts_.model.forward(batch_, pass, loss_.data()));
    notes_.forget();
    // Adds as the steps' backward does, though here to what the last pass has left.
    RONDO_TRY(parts_.model.backward(batch_, pass, 1, true, notes_));
  }
  return end_ms();
}

template <class T>
Result<double> DeviceControl<T>::compute_then_reduce() {
  const uint64_t terms = batch_.size * parts_.model.loss_terms() * parts_.options.accum;
  RONDO_TRY(ddp_.begin({.loss_terms = terms}));
  RONDO_TRY(ddp_.headers().status());
  RONDO_TRY(compute().status());
  RONDO_TRY(parts_.host.barrier());  // no rank comes late
  clock_.step_begins(++measured_);
  notes_.tell(ddp_);
  RONDO_TRY(ddp_.finish());
  return end_ms();
}

/// Since step_begins(), when the stream has done what it got.
template <class T>
Result<double> DeviceControl<T>::end_ms() {
  const Device::Event end = clock_.step_ends();
  RONDO_TRY(parts_.device.status());
  RONDO_TRY(parts_.device.await(end));
  RONDO_TRY(parts_.ranks_are_well());
  const double ms = clock_.times(measured_, 0, {}).compute_ms;  // without what came before
  RONDO_TRY(parts_.device.status());
  return ms;
}

template class DeviceControl<float>;
template class DeviceControl<cuda::BFloat16Bits>;
template class DeviceControl<cuda::Float16Bits>;

}  // namespace rondo::trainer
