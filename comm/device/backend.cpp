#include "comm/device/backend.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <mutex>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/device/cuda_engine.hpp"

namespace rondo::device {
namespace {

// For a copy of some kilobytes. Only a blocked stream of the application that shares a queue with
// rondo's can delay it that long.
constexpr int64_t kLongestCopyNs = 10'000'000'000;

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
  return GpuBackend{.cuda = std::move(cuda),
                    .kernel = engine::walk_kernel(),
                    .threads = engine::kWalkThreads,
                    .ll_kernel = engine::walk_ll_kernel(),
                    .ll_threads = engine::kLlWalkThreads};
}

void replace_backend(std::function<Result<GpuBackend>()> open) {
  const std::lock_guard lock(replacement().mutex);
  replacement().open = std::move(open);
}

Status copy_and_wait(CudaCalls& cuda, std::byte* to, const std::byte* from, size_t bytes,
                     Stream stream, const char* what) {
  const OutsideCapture outside(cuda);
  RONDO_TRY(outside.status());
  RONDO_TRY(cuda.copy(to, from, bytes, stream));
  return await_copies(cuda, stream, what);
}

Status await_copies(CudaCalls& cuda, Stream stream, const char* what) {
  const int64_t began = base::now_ns();
  while (true) {
    bool done = RONDO_TRY(cuda.is_done(stream));
    if (done) return {};
    if (base::now_ns() - began > kLongestCopyNs) {
      return {Code::kTimeout,
              fmt::format("{} was not copied to the GPU within 10 s: something that "
                          "does not end holds up its copies",
                          what)};
    }
    sched_yield();
  }
}

DeviceScope::DeviceScope(CudaCalls& cuda, int device) : cuda_(cuda) {
  Result<int> before = cuda.current_device();
  status_ = before.status();
  if (!status_.ok() || *before == device) return;
  status_ = cuda.enter_device(device);
  has_entered_ = status_.ok();
}

DeviceScope::~DeviceScope() {
  if (has_entered_) (void)cuda_.leave_device();
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
