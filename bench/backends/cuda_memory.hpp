// What rondo-perf needs of CUDA itself: device memory beside the harness', a stream, events,
// graphs, and a comparison there. The harness fills the host's memory; each piece of it has a twin
// on the device, which is what collectives are called with.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "bench/harness/mismatch.hpp"
#include "rondo/status.hpp"

namespace rondo::bench {

/// One rank's. Not thread-safe; used by the thread that made it, whose current device it sets.
class CudaMemory {
 public:
  virtual ~CudaMemory() = default;

  virtual int device() const = 0;
  virtual void* stream() const = 0;  // a cudaStream_t

  /// Memory of the host that has a twin; null: there is none.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  /// Where the twin has what is at `memory`; null for memory that has none.
  virtual std::byte* twin(const void* memory) const = 0;

  /// Between host and twin, either way, on the stream; then waits for it.
  virtual Status give(std::byte* twin, const void* memory, size_t bytes) = 0;
  virtual Status take(void* memory, const std::byte* twin, size_t bytes) = 0;
  virtual Status synchronize() = 0;

  /// Between two pieces of the device's memory, there, on the stream; then waits for it. Elements
  /// have 1, 2, 4 or 8 bytes, and addresses are multiples of that.
  virtual Result<Mismatch> compare(const std::byte* found, const std::byte* expected, size_t count,
                                   size_t element_bytes) = 0;

  /// Microseconds that the stream takes for what `enqueue` puts there.
  virtual Result<double> time(const std::function<Status()>& enqueue) = 0;
  /// Makes a graph of what `enqueue` puts on the stream, in place of the last one; and puts it
  /// there. Making one may wait for the device, so no rank may be ahead, before or after.
  virtual Status capture(const std::function<Status()>& enqueue) = 0;
  virtual Status replay() = 0;
};

/// On the device that is this rank's turn. kUnavailable, with a sentence: there is none.
Result<std::unique_ptr<CudaMemory>> open_cuda_memory(int local_rank);

}  // namespace rondo::bench
