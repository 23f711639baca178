// The control run (control.hpp) of a device: the same passes, measured by events on its stream.
#pragma once

#include <memory>
#include <vector>

#include "trainer/data/dataset.hpp"
#include "trainer/step/control.hpp"
#include "trainer/step/device_step.hpp"

namespace rondo::trainer {

/// One thread. Borrows what it gets. After a failure peers' kernels may wait for this rank: end
/// that before the object, which frees memory of the device.
template <class T>
class DeviceControl {
 public:
  /// `clock` of the parts is left alone: what is measured here is in no trace. Throws
  /// std::bad_alloc.
  DeviceControl(const DeviceStepParts<T>& parts, const Dataset& data);
  ~DeviceControl();
  DeviceControl(const DeviceControl&) = delete;
  DeviceControl& operator=(const DeviceControl&) = delete;

  /// Collective, once, before the first step. REQUIRES: DeviceWeights::upload(). Gradients are then
  /// zeros, and buffers as before.
  Result<ControlTimes> run();

 private:
  Result<double> compute();
  Result<double> compute_then_reduce();
  Result<double> end_ms();

  const DeviceStepParts<T> parts_;
  const Dataset& data_;
  DistributedDataParallel& ddp_;
  DeviceClock clock_;
  DeviceArray<double> loss_;                 // of nobody's interest
  std::vector<DeviceArray<float>> buffers_;  // as they were
  BackwardNotes notes_;
  Batch batch_;
  uint64_t measured_ = 0;
};

}  // namespace rondo::trainer
