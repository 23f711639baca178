// Lowered programs in device memory, where kernels read them. The memory is allocated when the
// communicator is created, since allocating may wait for running kernels.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "comm/device/backend.hpp"
#include "comm/device/device_operation.hpp"
#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"

namespace rondo::device {

struct Uploaded {
  const engine::StoredProgram* stored;  // on the device, the same as the next two
  engine::ProgramView view;
  const schedule::Geometry* geometries;  // [channel]
  int channels;                          // those with something to do are the first ones
  uint64_t bytes_moved;                  // of payload, between this rank and others
  std::shared_ptr<const engine::Prepared> keep_alive;
};

/// Thread rule: the communicator's. Ends with every kernel that reads a program.
class Programs {
 public:
  /// Uses the current device. `stream`: the communicator's own, on which nothing else waits.
  static Result<std::unique_ptr<Programs>> create(std::shared_ptr<CudaCalls> cuda, size_t bytes,
                                                  Stream stream);
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  /// The plan, one of `owner`'s, in device memory. `captured`: a graph uses it, which may be replayed at
  /// any time, so it is never dropped; the first call for it waits for its copy, some microseconds.
  /// Another new plan comes with copy_new(). kResourceExhausted: there is no room; forget() makes
  /// some, unless graphs have it all.
  Result<const Uploaded*> find(const engine::ExecutionPlan& plan,
                               const std::shared_ptr<const engine::Prepared>& owner, int ranks,
                               bool captured);
  /// Whether find() has found plans that are to be copied; enqueues their copy on the communicator's
  /// own stream and waits for nothing. A kernel that reads them comes after that.
  bool has_new() const { return copied_ < low_; }
  Status copy_new();
  /// Bytes that find() would need for the plan, 0 if it is present; and the bytes available.
  size_t needed(const engine::ExecutionPlan& plan, bool captured) const;
  size_t room() const { return high_ - low_; }
  /// Drops all programs except those of graphs. REQUIRES: no copy or kernel uses a dropped one.
  void forget();

  /// The data of a barrier: a few bytes to read, as many to write.
  std::byte* scratch_in() const { return memory_; }
  std::byte* scratch_out() const { return memory_ + kScratch / 2; }

 private:
  static constexpr size_t kScratch = 256;

  Programs(std::shared_ptr<CudaCalls> cuda, size_t bytes, Stream stream)
      : cuda_(std::move(cuda)), stream_(stream), high_(bytes) {}

  const std::shared_ptr<CudaCalls> cuda_;
  const Stream stream_;
  std::byte* memory_ = nullptr;
  std::byte* staging_ =
      nullptr;  // on the host; a place for each program, for copies are not awaited
  size_t low_ = kScratch, high_;  // free is what lies between: below, what may be forgotten
  size_t copied_ = kScratch;      // of that the part whose copy is enqueued
  std::map<const engine::ExecutionPlan*, Uploaded> plain_, captured_;
};

}  // namespace rondo::device
