// A rank's GPU as the trainer sees it: one stream, on which everything is computed in the order of
// the calls, memory, copies, and the first failure. Nothing here waits for the GPU but wait() and
// what frees memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "rondo/status.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::trainer {

/// One thread, whose current device open() sets.
class Device {
 public:
  using Stream = transport::cuda_ipc::Stream;
  using Event = transport::cuda_ipc::Event;

  /// How many CUDA sees. kUnavailable: none, or no CUDA.
  static Result<int> count();
  /// GPU `number` as CUDA counts. kUnavailable: there is no such GPU, or no CUDA.
  static Result<std::unique_ptr<Device>> open(int number);
  /// Waits for what is on the stream.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }
  const std::string& name() const { return name_; }
  transport::cuda_ipc::CudaCalls& cuda() { return *cuda_; }
  /// Where everything is computed. It does not wait for CUDA's default stream.
  Stream stream() const { return stream_; }
  /// Whether matrix products of floats may round what they multiply to TF32 (10 bits of mantissa),
  /// for tensor cores; not unless told to. Products ask when they are opened.
  bool tf32() const { return tf32_; }
  void set_tf32(bool allowed) { tf32_ = allowed; }

  /// The first failure of a call that returns none: later ones do nothing. It says what was called.
  const Status& status() const { return status_; }
  void note(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  /// That of calls which had no effect, since a capture failed, is no longer the device's.
  void forget_failure();

  /// Enqueued. Host memory should be pinned (PinnedArray), and is the copy's until the stream has
  /// passed it.
  void copy(void* to, const void* from, size_t bytes);
  void clear(void* memory, size_t bytes);
  /// A grid of x by y by z blocks, on this stream or on another; `argument` is copied.
  struct LaunchGrid {
    uint32_t x, y, z, threads;
    size_t shared_bytes;
  };
  void launch(const char* what, const void* kernel, const LaunchGrid& blocks,
              const void* argument) {
    launch(what, kernel, blocks, argument, stream_);
  }
  void launch(const char* what, const void* kernel, const LaunchGrid& blocks, const void* argument,
              Stream stream);
  /// Blocks until everything on the stream has ended; the first failure.
  Status wait();
  /// What else the host looks at while it waits for an event: a kernel that waits for another rank
  /// ends by its own time limit only, but a communicator's status knows earlier that the other one
  /// has died. Null: nothing. Called by the device's thread.
  void watch(std::function<Status()> ranks) { ranks_ = std::move(ranks); }
  /// Blocks until the stream has passed the event, or the first failure is known: its own, the
  /// event's or that of watch().
  Status await(Event event);
  /// The same for everything on the stream so far. Not while it is captured.
  Status await_all();

 private:
  Status poll(const std::function<Result<bool>()>& ended);
  Device(std::shared_ptr<transport::cuda_ipc::CudaCalls> cuda, int number,
         const transport::cuda_ipc::DeviceInfo& info, Stream stream);

  const std::shared_ptr<transport::cuda_ipc::CudaCalls> cuda_;
  const int number_;
  const std::string name_;
  const size_t most_shared_bytes_;  // of a block
  const Stream stream_;
  bool tf32_ = false;
  Status status_;
  std::function<Status()> ranks_;
  // Kernels that may ask for most_shared_bytes_. It is not what they have needed so far: what is allowed
  // counts for all of the process, where another device of this GPU may need more.
  std::set<const void*> may_share_most_;
};

/// `count` elements that it owns: a device's memory, cleared on its stream; or, kPinned, host memory
/// that the device copies from and to without waiting for the host, not cleared. Freed when the
/// stream has passed everything enqueued so far: blocks. Throws std::bad_alloc, whose cause is the
/// device's status(). Borrows the device.
template <class T, bool kPinned>
class OwnedArray {
 public:
  OwnedArray() = default;
  OwnedArray(Device& device, size_t count) : device_(&device), count_(count) {
    if (count == 0) return;
    Result<std::byte*> made =
        kPinned ? device.cuda().allocate_mapped(bytes()) : device.cuda().allocate(bytes());
    if (!made.ok()) {
      device.note(made.status());
      throw std::bad_alloc();
    }
    data_ = reinterpret_cast<T*>(*made);
    if (!kPinned) device.clear(data_, bytes());
  }
  ~OwnedArray() {
    if (data_ == nullptr) return;
    (void)device_->wait();  // after a failure, too: a copy or a clear may be under way
    auto* const memory = reinterpret_cast<std::byte*>(data_);
    device_->note(kPinned ? device_->cuda().release_mapped(memory)
                          : device_->cuda().release(memory));
  }
  OwnedArray(OwnedArray&& other) noexcept { swap(other); }
  OwnedArray& operator=(OwnedArray&& other) noexcept {
    swap(other);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t count() const { return count_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  void swap(OwnedArray& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  Device* device_ = nullptr;
  T* data_ = nullptr;
  size_t count_ = 0;
};
template <class T>
using DeviceArray = OwnedArray<T, false>;
template <class T>
using PinnedArray = OwnedArray<T, true>;

}  // namespace rondo::trainer
