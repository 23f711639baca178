// Memory of calls: views of typed buffers, and library memory, which every rank of this host can
// access in place, so that collectives need no staging.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "rondo/status.hpp"
#include "rondo/types.hpp"

namespace rondo {

/// The elements of an array, vector, span, ...: const where they may only be read.
template <class Range>
using ElementIn = typename decltype(std::span(std::declval<Range&>()))::element_type;
template <class Range>
concept ReadableRange =
    std::optional<DataType>(DataTypeOf<std::remove_const_t<ElementIn<Range>>>::kValue)
.has_value();
template <class Range>
concept WritableRange = ReadableRange<Range> && !std::is_const_v<ElementIn<Range>>;

/// A buffer that a call reads: any contiguous range of elements. Empty where a rank has none.
class InSpan {
 public:
  InSpan() = default;
  template <ReadableRange Range>
  InSpan(const Range& range)  // NOLINT(google-explicit-constructor): any range is an argument
      : data_(std::span(range).data()),
        size_(std::span(range).size()),
        type_(*std::optional<DataType>(DataTypeOf<std::remove_const_t<ElementIn<Range>>>::kValue)) {
  }

  const void* data() const { return data_; }
  size_t size() const { return size_; }  // elements
  DataType type() const { return type_; }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
  DataType type_ = DataType::kUint8;
};

/// A buffer that a call writes, likewise.
class OutSpan {
 public:
  OutSpan() = default;
  template <class Range>
  requires WritableRange<std::remove_reference_t<Range>> &&
      std::ranges::borrowed_range<Range>  // a temporary vector's elements would be gone
      OutSpan(Range&& range)              // NOLINT: as above; the range itself is not kept
      : data_(std::span(range).data()),
        size_(std::span(range).size()),
        type_(*std::optional<DataType>(
            DataTypeOf<ElementIn<std::remove_reference_t<Range>>>::kValue)) {}

  void* data() const { return data_; }
  size_t size() const { return size_; }  // elements
  DataType type() const { return type_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  DataType type_ = DataType::kUint8;
};

}  // namespace rondo

#pragma GCC visibility push(default)
namespace rondo {

/// Returns `bytes` of zeroed memory, aligned to 64 bytes (2 MiB from 2 MiB up), from this process's
/// arena, which the ranks of the host map when a communicator is created. Collectives on it copy
/// straight from buffer to buffer. Local; never waits for a peer. Null when the arena is exhausted
/// or could not be created: then use any other memory, which is accepted everywhere and staged.
/// alloc(0) returns a unique pointer. A child of fork() has a private copy. Thread-safe.
[[nodiscard]] void* alloc(size_t bytes);

/// Frees memory of alloc(); null is allowed. REQUIRES: no collective uses it any more. Thread-safe.
void dealloc(void* pointer);

/// Turns the caller's own memory into library memory at its address: the pages that hold
/// [pointer, pointer + bytes) are replaced by pages of the arena with the same content. Local; never
/// waits for a peer. Errors: kInvalidArgument (null, unmapped, or library memory already),
/// kResourceExhausted (the arena is; 2 MiB of it are taken at least), kSystem. REQUIRES: the pages
/// may be read and written, and no thread writes to them meanwhile; unregister_memory() before the
/// memory is freed or unmapped. Whole pages are registered, also if they hold other data. After
/// fork() the child has a private copy. Each fork() copies all library memory that has been written,
/// about a second for each GiB, and each child keeps its copy. Thread-safe.
Status register_memory(void* pointer, size_t bytes);

/// Makes these pages private memory again, at the same address with the same content. `pointer` is
/// what register_memory() was given. Errors: kInvalidArgument (it was not), kSystem (they stay
/// registered). REQUIRES: no collective uses them, and no thread writes to them meanwhile. Thread-safe.
Status unregister_memory(void* pointer);

/// Whether [pointer, pointer + bytes) lies in library memory of this process.
bool is_library_memory(const void* pointer, size_t bytes);

// Registered memory, of communicators with Config::device. Algorithms that access buffers in place
// (kOneShotDirect, kTwoShotDirect) are used between processes, in graphs as well, for operations
// whose buffers lie in memory that was registered on every rank; others go through slots. (Ranks
// that are threads of one process access each other's buffers without.)
//
// Communicator::register_device_memory(pointer, bytes) takes memory of cudaMalloc() or device_alloc(), and
// memory that was mapped by cuMemMap() if all of it was created (cuMemCreate()) with the handle type
// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, in 1024 pieces at most, and the ranks of each process are
// on one GPU. Kinds and sizes may differ between ranks, and any part may then be used. Collective: it
// blocks as long as some operations may (one, and with N ranks one for every 256 / (N (N - 1))
// pieces, at least 1 and at most 64), and importing memory may wait for kernels that run on the GPU.
// Not in a group, nor while this thread captures a stream. The error of one rank is returned on all,
// nothing is registered then, and the communicator goes on: kUnavailable (memory of a pool, or other
// mapped memory; the driver or the system refuses to share it; GPUs without access to
// each other), kInvalidArgument (not in one allocation, or not all mapped, on this communicator's
// device; it has none), kResourceExhausted (256 registrations; descriptors).
//
// Communicator::unregister_device_memory(pointer) takes what was registered, and waits for nobody. A rank
// that still uses a registration which has ended on another gets kMismatch. Replays of graphs that
// hold operations on the memory must have ended. A rank keeps peers' memory mapped while its own
// enqueued operations run: the call lets go of it if they have ended, otherwise a later status() or
// register_device_memory() does. Graphs may be replayed again, and go through slots, only after that: where
// there are some, synchronize this rank's streams before the call, which then lets go.
// kInvalidArgument: the memory was not registered.
//
// Memory may be freed after every rank has let go: synchronize the streams, unregister, meet the
// other ranks (a barrier, and its stream), free. As in CUDA it is undefined to free what a peer
// still maps; mapped memory stays until all peers have let go. device_free() refuses memory that is
// registered in this process.

// Algorithm::kCopyEngine, on one host, moves all_gather, all_to_all, broadcast and gather by the GPUs'
// copy engines (cudaMemcpyAsync), so that multiprocessors are free for other work but for one block
// that waits before the copies and one after them. It is used only where Config::algorithm or
// CallOptions::algorithm says so, and takes registered memory, also between threads of one process.
// Every rank passes In (of a broadcast: Out) at the same offset of the same registration; that of an
// all_gather may be in place, on all ranks or none. kUnavailable: it is not registered; kMismatch: it
// lies elsewhere than another rank's. Both end the communicator. Graphs may hold such calls,
// but hold peers' addresses too: they are not replayed after the registration has ended, or CUDA
// fails (status() says kMismatch, and why). After any failure copies may still read what peers have
// registered: free that memory when every rank has destroyed the communicator.

/// Returns `bytes` of memory of that CUDA device, aligned to 256 bytes and not cleared, which
/// Communicator::register_device_memory() can register, as it can all memory of cudaMalloc(). Local; may wait
/// for kernels that run on the device. Errors: kUnavailable (no CUDA, no such device),
/// kResourceExhausted, kSystem. Thread-safe.
Result<void*> device_alloc(size_t bytes, int device);

/// Frees memory of device_alloc(); null is allowed. Errors: kInvalidArgument (it is not, or part of it
/// is still registered in this process). REQUIRES: no operation uses it any more, and no rank maps it
/// (Communicator::unregister_device_memory()). Thread-safe.
Status device_free(void* pointer);

}  // namespace rondo
#pragma GCC visibility pop
