#include "comm/device/backend.hpp"

#include <mutex>
#include <utility>

#include "comm/device/cuda_engine.hpp"

namespace rondo::device {
namespace {

struct Replacement {
  std::mutex mutex;
  std::function<Result<GpuBackend>()> open;
};
Replacement& replacement() {
  static Replacement the_replacement;
  return the_replacement;
}

}  // namespace

Result<GpuBackend> open_backend() {
  {
    const std::lock_guard lock(replacement().mutex);
    if (replacement().open) return replacement().open();
  }
  auto cuda = RONDO_TRY(transport::cuda_ipc::open_cuda());
  return GpuBackend{
      .cuda = std::move(cuda), .kernel = engine::walk_kernel(), .threads = engine::kWalkThreads};
}

void replace_backend(std::function<Result<GpuBackend>()> open) {
  const std::lock_guard lock(replacement().mutex);
  replacement().open = std::move(open);
}

DeviceScope::DeviceScope(CudaCalls& cuda, int device) : cuda_(cuda), device_(device) {
  Result<int> before = cuda.current_device();
  status_ = before.status();
  if (!status_.ok() || *before == device) return;
  status_ = cuda.set_device(device);
  if (status_.ok()) before_ = *before;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0 && before_ != device_) (void)cuda_.set_device(before_);
}

OutsideCapture::OutsideCapture(CudaCalls& cuda) : cuda_(cuda) {
  Result<int> before = cuda.exchange_capture_mode(CudaCalls::kRelaxed);
  status_ = before.status();
  if (status_.ok()) before_ = *before;
}

OutsideCapture::~OutsideCapture() {
  if (before_ >= 0) (void)cuda_.exchange_capture_mode(before_);
}

}  // namespace rondo::device
