// The process's arena: rondo::alloc and rondo::dealloc. Not a general-purpose allocator: a few large,
// long-lived buffers.
//
// Invariant: everything on the free list is zero, so that alloc() has nothing to clear. free()
// restores it: large ranges go back to the system (and read as zero when next touched), small ones
// are overwritten.
#include "transport/memory/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "rondo/memory.hpp"
#include "transport/memory/across_fork.hpp"
#include "transport/memory/free_list.hpp"
#include "transport/memory/registered.hpp"

namespace rondo {
namespace transport {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// From here on a fault per page is cheaper than keeping the memory.
constexpr size_t kGiveBack = size_t{256} << 10;

struct Arena {
  explicit Arena(Segment memory) : segment(std::move(memory)), list(segment.bytes()) {}
  Segment segment;
  FreeList list;
  Arena* older = nullptr;  // inherited through fork()

  bool contains(const void* pointer, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    const auto base = reinterpret_cast<uintptr_t>(segment.base());
    return at >= base && at - base < segment.bytes() && bytes <= segment.bytes() - (at - base);
  }
};

/// One mutex for all of it: allocation is rare. Leaked on purpose: buffers may be freed by static
/// objects' destructors.
struct State {
  std::mutex mutex;
  bool tried = false;  // whether `arena` has been made, or could not be
  Status problem;      // of RONDO_ARENA_BYTES
  Arena* arena = nullptr;
  Arena* inherited = nullptr;  // arenas of this process's ancestors

  Segment::Copy copy;  // for the child, while this process forks

  /// Segments are made under this mutex.
  State() { Segment::register_fork_handlers(); }
  void before_fork() {
    if (arena != nullptr) copy = arena->segment.copy();
  }
  void after_fork() { Segment::discard(std::exchange(copy, {})); }
  void begin_child() {
    if (arena != nullptr) {
      arena->segment.become(std::exchange(copy, {}));
      arena->older = inherited;
      inherited = arena;
    }
    arena = nullptr;
    tried = false;
  }
};

State& state() { return across_fork<State>(); }

/// "67108864", "64M", "2G".
Result<size_t> parse_bytes(const char* text) {
  char* end = nullptr;
  errno = 0;
  const bool starts_with_digit = *text >= '0' && *text <= '9';
  const unsigned long long number = starts_with_digit ? std::strtoull(text, &end, 10) : 0;
  int shift = 0;
  if (starts_with_digit && *end != '\0') {
    constexpr std::string_view kUnits = "KMGT";
    const size_t unit = kUnits.find(*end);
    shift = unit == kUnits.npos || end[1] != '\0' ? -1 : 10 * static_cast<int>(unit + 1);
  }
  if (!starts_with_digit || errno != 0 || shift < 0 || number > (size_t{1} << 46) >> shift) {
    return Status(Code::kInvalidArgument, std::string("RONDO_ARENA_BYTES='") + text +
                                              "' is no size up to 64T; write for example 64M, or 0 "
                                              "for no library memory");
  }
  return static_cast<size_t>(number) << shift;
}

Result<size_t> arena_bytes(int ranks) {
  size_t bytes = 0;
  if (const char* text = std::getenv("RONDO_ARENA_BYTES"); text != nullptr && *text != '\0') {
    bytes = RONDO_TRY(parse_bytes(text));
  } else {
    const auto physical = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    bytes = default_arena_bytes(physical, ranks);
  }
  return (bytes + kHugePage - 1) & ~(kHugePage - 1);
}

/// The arena, made if it was not; null if there is none. REQUIRES: the mutex is held.
Arena* arena_locked(State& mine, int ranks = 1) {
  if (mine.tried) return mine.arena;
  mine.tried = true;
  const Result<size_t> bytes = arena_bytes(ranks);
  mine.problem = bytes.status();
  if (!bytes.ok() || bytes.value() == 0) return nullptr;
  Result<Segment> segment = Segment::create("rondo-arena", bytes.value(), Pages::kHuge);
  if (segment.ok()) mine.arena = new Arena(std::move(*segment));
  return mine.arena;
}

void make_zero(const Arena& arena, size_t offset, size_t bytes) {
  std::byte* const base = arena.segment.base();
  if (bytes >= kGiveBack) {
    const size_t first = (offset + kPage - 1) & ~(kPage - 1);
    const size_t last = (offset + bytes) & ~(kPage - 1);
    if (::madvise(base + first, last - first, MADV_REMOVE) == 0) {
      std::memset(base + offset, 0, first - offset);
      std::memset(base + last, 0, offset + bytes - last);
      return;
    }
  }
  std::memset(base + offset, 0, bytes);
}

[[noreturn]] void refuse_free(const void* pointer) {
  std::fprintf(stderr,
               "rondo: dealloc(%p): not a pointer that rondo::alloc gave in this process, or freed "
               "before\n",
               pointer);
  std::abort();
}

ArenaView view_of(Segment segment) {
  ArenaView view;
  view.base = segment.base();
  view.bytes = segment.bytes();
  view.id = static_cast<uint32_t>(segment.id());
  view.segment = std::move(segment);
  return view;
}

}  // namespace

uint64_t default_arena_bytes(uint64_t physical_bytes, int ranks) {
  const uint64_t most = std::bit_floor(kArenaAddresses / static_cast<uint64_t>(ranks));
  return std::min(std::bit_ceil(std::max(physical_bytes, uint64_t{1} << 30)), most);
}

Result<ArenaExport> export_arena(int ranks) {
  State& mine = state();
  const std::lock_guard lock(mine.mutex);
  const Arena* arena = arena_locked(mine, ranks);
  if (!mine.problem.ok()) return mine.problem;
  if (arena == nullptr) return ArenaExport{};
  return ArenaExport{
      .id = arena->segment.id(), .bytes = arena->segment.bytes(), .fd = arena->segment.fd()};
}

ArenaView own_arena() {
  State& mine = state();
  const std::lock_guard lock(mine.mutex);
  const Arena* arena = arena_locked(mine);
  return arena == nullptr ? ArenaView{} : view_of(arena->segment);
}

bool lies_in_arena(const void* pointer, size_t bytes) {
  State& mine = state();
  const std::lock_guard lock(mine.mutex);
  if (mine.arena == nullptr) return false;
  const std::byte* const begin = mine.arena->segment.base();
  const auto* const at = static_cast<const std::byte*>(pointer);
  return at < begin + mine.arena->segment.bytes() && begin < at + bytes;
}

Result<ArenaView> attach_arena(UniqueFd fd, uint64_t bytes) {
  Segment segment = RONDO_TRY(Segment::map(std::move(fd), bytes, Pages::kHuge));
  return view_of(std::move(segment));
}

}  // namespace transport

void* alloc(size_t bytes) {
  using namespace transport;
  State& mine = state();
  const std::lock_guard lock(mine.mutex);
  Arena* const arena = arena_locked(mine);
  if (arena == nullptr || bytes > arena->segment.bytes()) return nullptr;
  const size_t lines = bytes == 0 ? kLine : (bytes + kLine - 1) & ~(kLine - 1);
  const auto offset = arena->list.take(lines, bytes < kHugePage ? kLine : kHugePage);
  return offset ? arena->segment.base() + *offset : nullptr;
}

void dealloc(void* pointer) {
  using namespace transport;
  if (pointer == nullptr) return;
  State& mine = state();
  std::unique_lock lock(mine.mutex);
  Arena* const arena = mine.arena;
  if (arena == nullptr || !arena->contains(pointer, 0)) {
    for (const Arena* old = mine.inherited; old != nullptr; old = old->older) {
      if (old->contains(pointer, 0)) return;
    }
    refuse_free(pointer);
  }
  const auto offset = static_cast<size_t>(static_cast<std::byte*>(pointer) - arena->segment.base());
  const auto bytes = arena->list.remove(offset);
  if (!bytes) refuse_free(pointer);
  lock.unlock();
  make_zero(*arena, offset, *bytes);
  lock.lock();
  arena->list.insert(offset, *bytes);
}

bool is_library_memory(const void* pointer, size_t bytes) {
  using namespace transport;
  const std::byte* const at = arena_address(pointer, bytes);
  State& mine = state();
  const std::lock_guard lock(mine.mutex);
  return mine.arena != nullptr && mine.arena->contains(at, bytes);
}

}  // namespace rondo
