// The sums of synchronized batch norm over all ranks, on the stream of each rank's GPU.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "rondo/communicator.hpp"
#include "trainer/base/device.hpp"

namespace rondo::trainer {

/// One thread. Borrows the device, and `host`: the communicator of the same ranks on no device.
class BatchNormSums {
 public:
  /// Collective. `communicator` is the ranks' on their GPUs, of which this makes another.
  static Result<BatchNormSums> open(Device& device, Communicator& communicator,
                                    Communicator& host) {
    return BatchNormSums(device, RONDO_TRY(communicator.duplicate()), host);
  }

  Status status() const { return communicator_.status(); }
  void abort(const std::string& why) { communicator_.abort(why); }

  /// Whether the ranks meet before and after each sum, alike on all: for passes of a size that they have
  /// not made, whose products a library may have to load. That may wait for everything that runs on
  /// the GPU, so for a sum which waits for the rank that is about to load.
  void keep_together(bool together) { together_ = together; }

  /// Enqueued, if nothing is to wait. In place, in the GPU's memory.
  Status sum(double* values, size_t count) {
    if (together_) RONDO_TRY(meet());
    CallOptions call;
    call.stream = device_->stream();
    RONDO_TRY(
        communicator_.all_reduce(values, values, count, DataType::kFloat64, ReduceOp::kSum, call));
    return together_ ? meet() : Status();
  }

 private:
  BatchNormSums(Device& device, Communicator communicator, Communicator& host)
      : device_(&device), communicator_(std::move(communicator)), host_(&host) {}
  /// When every rank's stream is through.
  Status meet() {
    RONDO_TRY(device_->await_all());
    return host_->barrier();
  }

  Device* device_;
  Communicator communicator_;
  Communicator* host_;
  bool together_ = false;
};

}  // namespace rondo::trainer
