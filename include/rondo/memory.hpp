// Library memory: buffers that every rank of this host can read and write in place, so that
// collectives need not stage.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
namespace rondo {

/// `bytes` of zeroed memory, aligned to 64 bytes (2 MiB from 2 MiB up), from this process's arena,
/// which the ranks of the host map when a communicator is created. Collectives over such memory go
/// straight from buffer to buffer. Allocation is local and never waits for a peer. Null when the
/// arena is exhausted or could not be made (then use any other memory: it is always accepted, only
/// staged). Thread-safe. alloc(0) gives a unique pointer.
[[nodiscard]] void* alloc(size_t bytes);

/// Gives memory of alloc() back; null is allowed. REQUIRES: no collective still uses it.
/// Thread-safe.
void free(void* pointer);

/// Whether [pointer, pointer + bytes) lies in library memory of this process.
bool is_library_memory(const void* pointer, size_t bytes);

}  // namespace rondo
#pragma GCC visibility pop
