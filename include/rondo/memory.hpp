// Library memory: buffers that every rank of this host can access in place, so that collectives
// need no staging.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
namespace rondo {

/// Returns `bytes` of zeroed memory, aligned to 64 bytes (2 MiB from 2 MiB up), from this process's
/// arena, which the ranks of the host map when a communicator is created. Collectives on it copy
/// straight from buffer to buffer. Local; never waits for a peer. Null when the arena is exhausted
/// or could not be created: then use any other memory, which is accepted everywhere and staged.
/// alloc(0) returns a unique pointer. Thread-safe.
[[nodiscard]] void* alloc(size_t bytes);

/// Frees memory of alloc(); null is allowed. REQUIRES: no collective uses it any more. Thread-safe.
void free(void* pointer);

/// Whether [pointer, pointer + bytes) lies in library memory of this process.
bool is_library_memory(const void* pointer, size_t bytes);

}  // namespace rondo
#pragma GCC visibility pop
