// --compress on a device: the communication hook of make_compression_hook() for gradients in a
// device's memory. Each is scaled and rounded on the stream of communication, summed in two bytes,
// and widened there.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/ddp.hpp"
#include "trainer/base/device.hpp"

namespace rondo::trainer {

/// For one DistributedDataParallel of float gradients. Borrows the device.
class DeviceCompression final : public CommunicationHook {
 public:
  /// `wire`: kBFloat16 or kFloat16.
  DeviceCompression(Device& device, DataType wire) : device_(device), wire_(wire) {}

  /// Between create() and the first step: gets the memory that travels, two bytes for each of the
  /// gradients. Throws std::bad_alloc.
  void prepare(DistributedDataParallel& ddp);

  std::string name() const override { return std::string(rondo::name(wire_)); }
  size_t wire_bytes(DataType /*type*/) const override { return size_of(wire_); }
  bool works_on_device() const override { return true; }
  /// REQUIRES: prepare().
  Status enqueue(Communicator& communicator, const GradientBucket& bucket, void* stream) override;

  Work start(Communicator& communicator, const GradientBucket& bucket) override;
  void finish(const GradientBucket& /*bucket*/) override {}

 private:
  template <DataType kWire>
  Status enqueue_as(Communicator& communicator, const GradientBucket& bucket, void* stream);

  Device& device_;
  const DataType wire_;
  const float* gradients_ = nullptr;  // the first of all
  // Each where its gradient is. On the stream of communication, too: what owns that stream has ended
  // its work before it lets go of the hook.
  DeviceArray<uint16_t> travelling_;
};

}  // namespace rondo::trainer
