// Work of a device's stream that is put together once and launched as a whole, many times: a CUDA
// graph.
#pragma once

#include <functional>
#include <utility>

#include "trainer/base/device.hpp"

namespace rondo::trainer {

/// One thread, the device's. Borrows the device. Ends after what was launched has.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  ~DeviceGraph() { destroy(); }
  DeviceGraph(DeviceGraph&& other) noexcept { swap(other); }
  DeviceGraph& operator=(DeviceGraph&& other) noexcept {
    swap(other);
    return *this;
  }

  /// Of what `enqueue` puts on the stream, and on streams that join; nothing of it runs. Makes the
  /// graph, which may wait for everything on the GPU. After an error the device has none: what was
  /// called had no effect. Throws what `enqueue` throws; the stream is as before then, too.
  static Result<DeviceGraph> capture(Device& device, const std::function<Status()>& enqueue);
  /// Whether that can be captured. Makes no graph.
  static Status try_capture(Device& device, const std::function<Status()>& enqueue);
  explicit operator bool() const { return graph_ != nullptr; }
  /// Enqueued. An error is the device's.
  void launch();

 private:
  static Result<DeviceGraph> make(Device& device, const std::function<Status()>& enqueue);
  void swap(DeviceGraph& other) {
    std::swap(device_, other.device_);
    std::swap(graph_, other.graph_);
  }
  void destroy();

  Device* device_ = nullptr;
  transport::cuda_ipc::ExecutableGraph graph_ = nullptr;
};

}  // namespace rondo::trainer
