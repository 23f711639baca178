// rondo-perf's own use of CUDA: device memory beside the harness's, a stream, events, graphs, and a
// comparison on the device. The harness fills host memory; each piece has a twin on the device,
// which is passed to the collectives.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "bench/harness/mismatch.hpp"
#include "rondo/status.hpp"

namespace rondo::bench {

/// Belongs to one rank. Not thread-safe; used by the thread that created it, whose current device
/// it sets.
class CudaMemory {
 public:
  virtual ~CudaMemory() = default;

  virtual int device() const = 0;
  virtual void* stream() const = 0;  // a cudaStream_t

  /// Host memory with a twin; null if exhausted.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  /// The address in the twin that corresponds to `memory`; null for memory without a twin.
  virtual std::byte* twin(const void* memory) const = 0;

  /// Copies between host and twin on the stream, then waits for it.
  virtual Status give(std::byte* twin, const void* memory, size_t bytes) = 0;
  virtual Status take(void* memory, const std::byte* twin, size_t bytes) = 0;
  virtual Status synchronize() = 0;

  /// Compares two pieces of device memory on the stream, then waits for it. Elements have 1, 2, 4
  /// or 8 bytes and are aligned to that.
  virtual Result<Mismatch> compare(const std::byte* found, const std::byte* expected, size_t count,
                                   size_t element_bytes) = 0;

  /// Microseconds that the stream takes for the work that `enqueue` puts on it.
  virtual Result<double> time(const std::function<Status()>& enqueue) = 0;
  /// The first captures the work of `enqueue` in a graph, which replaces the last one; the second
  /// enqueues the graph. Capturing may wait for the device, so no rank may be ahead, before or
  /// after.
  virtual Status capture(const std::function<Status()>& enqueue) = 0;
  virtual Status replay() = 0;
};

/// Memory on this rank's device, the GPUs being assigned to ranks in turn. kUnavailable, with a
/// message, without one.
Result<std::unique_ptr<CudaMemory>> open_cuda_memory(int local_rank);

}  // namespace rondo::bench
