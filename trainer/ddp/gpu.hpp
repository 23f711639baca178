// A rank's GPU, as DistributedDataParallel uses it: memory, and the order of two streams. On the
// caller's, the compute stream, gradients are computed and parameters updated; the communication
// stream is this object's. Knows no ranks. Nothing waits for the GPU but the beginning, the end and await().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/backend.hpp"
#include "rondo/ddp.hpp"
#include "rondo/status.hpp"

namespace rondo::ddp {

/// Why a GPU cannot be had, or not enough of its memory: thrown while a DistributedDataParallel is
/// created, or gets other buckets.
class GpuFailure : public std::exception {
 public:
  explicit GpuFailure(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

/// One thread. Owns what it allocates and creates.
class Gpu {
 public:
  using Stream = device::Stream;
  using Event = device::Event;
  static constexpr int64_t kLongestEndNs = 60'000'000'000;

  struct Setup {
    int device;
    Stream compute;
    std::string owner;  // "rank 1", for errors
    int64_t longest_end_ns = kLongestEndNs;
  };
  /// Throws GpuFailure, as the next two do.
  explicit Gpu(Setup setup);
  /// After end(). What streams that are not done may use is never freed. Freeing memory may wait for
  /// everything on the GPU.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// Zeroed when the compute stream reaches it. May wait for everything on the GPU.
  std::byte* allocate(size_t bytes);
  Event create_event();
  /// Leaves memory of allocate() to the process: it is never freed.
  void leave(const std::byte* memory) { std::erase(memory_, memory); }
  /// Waits until both streams are done, at most `longest_end_ns`, once. False: they are not.
  bool end();

  /// The first failure of what follows, which does nothing after it.
  const Status& status() const { return failure_; }
  Stream compute() const { return setup_.compute; }
  Stream communication() const { return communication_; }

  /// On the compute stream.
  void copy(void* to, const void* from, size_t bytes);
  void clear(void* memory, size_t bytes);
  void record_on_communication(Event event);
  /// What the communication stream gets from now on comes after what the compute stream has.
  void hand_over();
  /// What the compute stream gets from now on comes after the event, or after what the communication
  /// stream has.
  void compute_after(Event event);
  void take_back();

  /// Has `event` take down when the stream gets there; null: one is made, and kept.
  void take_time(Event& event, Stream stream);
  /// Between two events that have taken a time down, and have happened.
  Result<int64_t> ns_between(Event from, Event to) const;
  /// Blocks until the event has happened, or `ranks` returns an error.
  Status await(Event event, const std::function<Status()>& ranks) const;

  /// Whether what the compute stream gets goes into a graph. An error is a no.
  bool is_captured() const;

  /// What `mark` does at the places of transfers; empty: nothing.
  void mark_transfers(std::function<void(const DdpTransferMark&)> mark) { mark_ = std::move(mark); }
  /// The same for rondo itself.
  void note_transfers(std::function<void(const DdpTransferMark&)> note) { note_ = std::move(note); }
  void mark(const DdpTransferMark& here) const {
    if (mark_) mark_(here);
    if (note_) note_(here);
  }

 private:
  Gpu(std::shared_ptr<device::CudaCalls> cuda, Setup setup);
  /// With whose GPU it was.
  Status named(const Status& status) const;
  template <class Call>
  void enqueue(const Call& call);
  template <class Call>
  auto look(const Call& call) const;
  bool await_end() const;

  const std::shared_ptr<device::CudaCalls> cuda_;
  const Setup setup_;
  Stream communication_ =
      nullptr;  // urgent: else a bucket waits for all blocks of a kernel under way
  Event handed_over_ = nullptr, taken_back_ = nullptr;
  std::vector<Event> events_;  // all
  std::vector<std::byte*> memory_;
  Status failure_;
  std::function<void(const DdpTransferMark&)> mark_, note_;
  std::optional<bool> ended_;  // what end() has found
};

/// On the compute stream; where `gpu` is null, in the host's memory, at once.
inline void copy(Gpu* gpu, void* to, const void* from, size_t bytes) {
  if (gpu != nullptr) return gpu->copy(to, from, bytes);
  std::memcpy(to, from, bytes);
}
inline void clear(Gpu* gpu, void* memory, size_t bytes) {
  if (gpu != nullptr) return gpu->clear(memory, bytes);
  std::memset(memory, 0, bytes);
}

}  // namespace rondo::ddp
