// See device_graph.hpp.
#include "trainer/base/device_graph.hpp"

namespace rondo::trainer {

using transport::cuda_ipc::CudaCalls;
using transport::cuda_ipc::Graph;

namespace {

Result<Graph> capture_graph(Device& device, const std::function<Status()>& enqueue) {
  CudaCalls& cuda = device.cuda();
  RONDO_TRY(cuda.begin_capture(device.stream(), CudaCalls::kThreadLocal));
  // In any case: nothing else could be done with the stream.
  const auto end = [&](bool wanted) -> Result<Graph> {
    Result<Graph> graph = cuda.end_capture(device.stream());
    if (!wanted && graph.ok()) (void)cuda.destroy_graph(*graph);
    return graph;
  };
  try {
    Status enqueued = enqueue();
    if (enqueued.ok()) enqueued = device.status();
    Result<Graph> graph = end(enqueued.ok());
    RONDO_TRY(enqueued);
    return graph;
  } catch (...) {
    (void)end(false);
    throw;
  }
}

}  // namespace

Result<DeviceGraph> DeviceGraph::capture(Device& device, const std::function<Status()>& enqueue) {
  RONDO_TRY(device.status());
  Result<DeviceGraph> made = make(device, enqueue);
  if (!made.ok()) device.forget_failure();
  return made;
}

Status DeviceGraph::try_capture(Device& device, const std::function<Status()>& enqueue) {
  RONDO_TRY(device.status());
  const Result<Graph> captured = capture_graph(device, enqueue);
  if (captured.ok()) return device.cuda().destroy_graph(*captured);
  device.forget_failure();
  return captured.status();
}

Result<DeviceGraph> DeviceGraph::make(Device& device, const std::function<Status()>& enqueue) {
  CudaCalls& cuda = device.cuda();
  const Graph graph = RONDO_TRY(capture_graph(device, enqueue));
  const Result<transport::cuda_ipc::ExecutableGraph> executable = cuda.instantiate(graph);
  (void)cuda.destroy_graph(graph);
  DeviceGraph made;
  made.device_ = &device;
  made.graph_ = RONDO_TRY(executable);
  RONDO_TRY(cuda.upload(made.graph_, device.stream()));
  return made;
}

void DeviceGraph::launch() {
  if (device_->status().ok())
    device_->note(device_->cuda().launch_graph(graph_, device_->stream()));
}

void DeviceGraph::destroy() {
  if (graph_ != nullptr) device_->note(device_->cuda().destroy_executable(graph_));
}

}  // namespace rondo::trainer
