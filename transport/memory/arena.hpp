// The arena behind rondo::alloc (rondo/memory.hpp), and peers' arenas mapped into this process.
//
// One sparse memfd per process, made at the first use. Its size is the machine's memory, rounded up
// to a power of two GiB, or less where so many ranks could not map each other's: then a power of
// two that fits kArenaAddresses; RONDO_ARENA_BYTES overrides it (bytes, or with K, M, G, T; 0: no library
// memory). A forked child does not inherit it: the child makes its own at its first alloc; what it
// inherited stays readable, is no library memory to it, and dealloc() ignores it.
#pragma once

#include <cstdint>

#include "rondo/status.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::transport {

/// What a peer needs in order to map this process's arena. fd -1: there is none (switched off, or
/// could not be made).
struct ArenaExport {
  uint64_t id = 0;
  uint64_t bytes = 0;
  int fd = -1;  // still the arena's: send it, do not close it
};

/// An arena as this process sees it; keeps it mapped. base null: none.
struct ArenaView {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  uint32_t id = 0;
  Segment segment;
};

/// Half of what x86-64 has for a process: the arenas of all ranks of a host together are to fit.
inline constexpr uint64_t kArenaAddresses = uint64_t{1} << 46;
/// The size where RONDO_ARENA_BYTES does not say.
uint64_t default_arena_bytes(uint64_t physical_bytes, int ranks);

/// This process's arena, made now if it was not, for so many `ranks` that map it. An arena that cannot be made is no error (memory
/// is staged then); a RONDO_ARENA_BYTES that makes no sense is (kInvalidArgument). Thread-safe.
Result<ArenaExport> export_arena(int ranks = 1);

/// This process's arena as a view; base null where export_arena() gives fd -1. Thread-safe.
ArenaView own_arena();

/// Whether this process's arena, if it has one, holds some of [pointer, pointer + bytes).
bool lies_in_arena(const void* pointer, size_t bytes);

/// Maps a peer's arena, once per process however often it is asked for; the own one resolves to its
/// own base. Consumes `fd`. Errors as Segment::map. Thread-safe.
Result<ArenaView> attach_arena(UniqueFd fd, uint64_t bytes);

}  // namespace rondo::transport
