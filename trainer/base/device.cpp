// See device.hpp.
#include "trainer/base/device.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "comm/device/backend.hpp"

namespace rondo::trainer {
namespace {

constexpr size_t kSharedWithoutAsking = size_t{48} << 10;  // bytes of a block

Status add_words(const Status& status, const std::string& words) {
  return status.ok() ? status : Status(status.code(), words + ": " + status.message());
}

}  // namespace

Result<int> Device::count() {
  const device::GpuBackend backend = RONDO_TRY(device::open_backend());
  return backend.cuda->device_count();
}

Result<std::unique_ptr<Device>> Device::open(int number) {
  const device::GpuBackend backend = RONDO_TRY(device::open_backend());
  const int count = RONDO_TRY(backend.cuda->device_count());
  if (number < 0 || number >= count) {
    return Status(Code::kUnavailable,
                  fmt::format("no GPU {}: CUDA sees {}, numbered from 0", number, count));
  }
  RONDO_TRY(backend.cuda->set_device(number));
  const auto info = RONDO_TRY(backend.cuda->device_info(number));
  const Stream stream = RONDO_TRY(backend.cuda->create_stream());
  return std::unique_ptr<Device>(new Device(backend.cuda, number, info, stream));
}

Device::Device(std::shared_ptr<transport::cuda_ipc::CudaCalls> cuda, int number,
               const transport::cuda_ipc::DeviceInfo& info, Stream stream)
    : cuda_(std::move(cuda)),
      number_(number),
      name_(info.name),
      most_shared_bytes_(info.most_shared_bytes),
      stream_(stream) {}

Device::~Device() {
  (void)cuda_->synchronize(stream_);
  (void)cuda_->destroy_stream(stream_);
}

void Device::forget_failure() { status_ = {}; }

void Device::copy(void* to, const void* from, size_t bytes) {
  if (!status_.ok() || bytes == 0) return;
  note(cuda_->copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes,
                   stream_));
}

void Device::clear(void* memory, size_t bytes) {
  if (!status_.ok() || bytes == 0) return;
  note(cuda_->clear(static_cast<std::byte*>(memory), bytes, stream_));
}

void Device::launch(const char* what, const void* kernel, const LaunchGrid& blocks,
                    const void* argument, Stream stream) {
  if (!status_.ok() || blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  if (blocks.shared_bytes > kSharedWithoutAsking && !may_share_most_.contains(kernel)) {
    note(add_words(cuda_->allow_shared(kernel, most_shared_bytes_), what));
    if (!status_.ok()) return;
    may_share_most_.insert(kernel);
  }
  void* arguments[] = {const_cast<void*>(argument)};
  const Status launched = cuda_->launch({.kernel = kernel,
                                         .blocks = static_cast<int>(blocks.x),
                                         .threads = static_cast<int>(blocks.threads),
                                         .shared_bytes = blocks.shared_bytes,
                                         .arguments = arguments,
                                         .stream = stream,
                                         .rows = static_cast<int>(blocks.y),
                                         .planes = static_cast<int>(blocks.z)});
  note(add_words(launched,
                 fmt::format("{}, {} x {} x {} blocks", what, blocks.x, blocks.y, blocks.z)));
}

Status Device::wait() {
  note(cuda_->synchronize(stream_));
  return status_;
}

Status Device::await(Event event) {
  return poll([&] { return cuda_->has_happened(event); });
}

Status Device::await_all() {
  return poll([this] { return cuda_->is_done(stream_); });
}

Status Device::poll(const std::function<Result<bool>()>& ended) {
  for (size_t looks = 1; status_.ok(); ++looks) {
    const Result<bool> has_ended = ended();
    note(has_ended.status());
    if (!has_ended.ok() || *has_ended) break;
    if (looks % 1024 == 0 && ranks_) note(ranks_());
    if (looks > 64) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return status_;
}

}  // namespace rondo::trainer
