// See gpu.hpp.
#include "trainer/ddp/gpu.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "rondo/log.hpp"
#include "trainer/base/clock.hpp"

namespace rondo::ddp {
namespace {

using device::DeviceScope;
using device::OutsideCapture;

template <class T>
T or_throw(Result<T> result) {
  if (!result.ok()) throw GpuFailure(result.status());
  return std::move(result).value();
}

void or_throw(const Status& status) {
  if (!status.ok()) throw GpuFailure(status);
}

}  // namespace

Gpu::Gpu(std::shared_ptr<device::CudaCalls> cuda, Setup setup)
    : cuda_(std::move(cuda)), setup_(std::move(setup)) {}

// From here on the destructor runs, also where this one throws.
Gpu::Gpu(Setup setup) : Gpu(or_throw(device::open_backend()).cuda, std::move(setup)) {
  const DeviceScope scope(*cuda_, setup_.device);
  or_throw(scope.status());
  communication_ = or_throw(cuda_->create_urgent_stream());
  handed_over_ = create_event();
  taken_back_ = create_event();
}

Gpu::~Gpu() {
  const DeviceScope scope(*cuda_, setup_.device);
  if (!end()) {
    log(LogLevel::kError,
        fmt::format("{}: the streams of its DistributedDataParallel on GPU {} do not end within {} "
                    "ms: what it has allocated there is left to them",
                    setup_.owner, setup_.device, setup_.longest_end_ns / 1'000'000));
    return;
  }
  for (const Event event : events_) (void)cuda_->destroy_event(event);
  for (std::byte* const memory : memory_) (void)cuda_->release(memory);
  if (communication_ != nullptr) (void)cuda_->destroy_stream(communication_);
}

bool Gpu::end() {
  if (!ended_) ended_ = await_end();
  return *ended_;
}

std::byte* Gpu::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const DeviceScope scope(*cuda_, setup_.device);
  or_throw(scope.status());
  memory_.reserve(memory_.size() + 1);
  memory_.push_back(or_throw(cuda_->allocate(bytes)));
  or_throw(cuda_->clear(memory_.back(), bytes, setup_.compute));
  return memory_.back();
}

Gpu::Event Gpu::create_event() {
  const DeviceScope scope(*cuda_, setup_.device);
  events_.reserve(events_.size() + 1);
  events_.push_back(or_throw(cuda_->create_event()));
  return events_.back();
}

Status Gpu::named(const Status& status) const {
  return {status.code(),
          fmt::format("{} on GPU {}: {}", setup_.owner, setup_.device, status.message())};
}

template <class Call>
void Gpu::enqueue(const Call& call) {
  if (!failure_.ok()) return;
  const DeviceScope scope(*cuda_, setup_.device);
  Status status = scope.status();
  if (status.ok()) status = call();
  if (status.ok()) return;
  failure_ = named(status);
}

void Gpu::copy(void* to, const void* from, size_t bytes) {
  enqueue([&] {
    return cuda_->copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes,
                       setup_.compute);
  });
}
void Gpu::clear(void* memory, size_t bytes) {
  enqueue([&] { return cuda_->clear(static_cast<std::byte*>(memory), bytes, setup_.compute); });
}
void Gpu::record_on_communication(Event event) {
  enqueue([&] { return cuda_->record(event, communication_); });
}
void Gpu::hand_over() {
  enqueue([&] { return cuda_->record(handed_over_, setup_.compute); });
  enqueue([&] { return cuda_->wait(communication_, handed_over_); });
}
void Gpu::compute_after(Event event) {
  enqueue([&] { return cuda_->wait(setup_.compute, event); });
}
void Gpu::take_back() {
  record_on_communication(taken_back_);
  compute_after(taken_back_);
}

void Gpu::take_time(Event& event, Stream stream) {
  enqueue([&]() -> Status {
    if (event == nullptr) {
      events_.reserve(events_.size() + 1);
      event = RONDO_TRY(cuda_->create_timed_event());
      events_.push_back(event);
    }
    return cuda_->record(event, stream);
  });
}

// Also while the caller captures a stream.
template <class Call>
auto Gpu::look(const Call& call) const {
  const DeviceScope scope(*cuda_, setup_.device);
  const OutsideCapture outside(*cuda_);
  return call();
}

bool Gpu::is_captured() const {
  const Result<uint64_t> capture = look([&] { return cuda_->capture_of(setup_.compute); });
  return capture.ok() && *capture != 0;
}

Result<int64_t> Gpu::ns_between(Event from, Event to) const {
  const Result<float> ms = look([&] { return cuda_->elapsed_ms(from, to); });
  if (!ms.ok()) return named(ms.status());
  return static_cast<int64_t>(double{*ms} * 1e6);
}

Status Gpu::await(Event event, const std::function<Status()>& ranks) const {
  while (true) {
    const Result<bool> happened = look([&] { return cuda_->has_happened(event); });
    if (!happened.ok()) return named(happened.status());
    RONDO_TRY(ranks());
    if (*happened) return {};
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool Gpu::await_end() const {
  const int64_t began_ns = trainer::now_ns();
  for (const Stream stream : {setup_.compute, communication_}) {
    // A GPU that answers with nothing but errors runs nothing any more.
    for (int errors = 0; errors < 3;) {
      const Result<bool> done = look([&] { return cuda_->is_done(stream); });
      if (done.ok() && *done) break;
      errors = done.ok() ? 0 : errors + 1;
      if (trainer::now_ns() - began_ns > setup_.longest_end_ns) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

}  // namespace rondo::ddp
