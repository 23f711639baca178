// See registered.hpp.
#include "transport/memory/registered.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "rondo/memory.hpp"
#include "transport/memory/across_fork.hpp"
#include "transport/memory/arena.hpp"

namespace rondo {
namespace transport {
namespace {

constexpr uintptr_t kSmallPage = 4096;
constexpr size_t kAlignedFrom = size_t{2} << 20;  // from here on alloc() aligns to it

struct Registration {
  size_t bytes;         // whole pages
  std::byte* shared;    // of alloc(): the same pages in the arena
  const void* pointer;  // as registered
};

struct Table {
  std::mutex mutex;
  std::map<uintptr_t, Registration> by_first_page;

  /// The arena's mutex is taken under this one.
  Table() { (void)own_arena(); }
  /// A forked child has a copy of the arena by now, and a new arena for its own library memory.
  /// The copy of what is registered here becomes the child's memory at the caller's address.
  void begin_child() {
    for (const auto& [first, registration] : by_first_page) {
      auto* const pages = reinterpret_cast<void*>(first);
      if (::mremap(registration.shared, registration.bytes, registration.bytes,
                   MREMAP_MAYMOVE | MREMAP_FIXED, pages) != MAP_FAILED) {
        continue;
      }
      // Rather a fault, or the end of the child, than a change in its parent.
      if (::mmap(pages, registration.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == MAP_FAILED) {
        std::abort();
      }
    }
    by_first_page.clear();
    registrations.store(0, std::memory_order_relaxed);
  }

  /// The registration that holds `address`, or end().
  auto holding(uintptr_t address) {
    auto after = by_first_page.upper_bound(address);
    if (after == by_first_page.begin()) return by_first_page.end();
    const auto found = std::prev(after);
    return address - found->first < found->second.bytes ? found : by_first_page.end();
  }
};

Table& table() { return across_fork<Table>(); }

std::string text_of(const void* pointer) {
  char at[32];
  std::snprintf(at, sizeof at, "%p", pointer);
  return at;
}

Status refuse(const char* call, const void* pointer, size_t bytes, const std::string& why) {
  return {Code::kInvalidArgument, std::string(call) + " of " + std::to_string(bytes) +
                                      " bytes at " + text_of(pointer) + ": " + why};
}

Status failed(const char* call, size_t bytes) {
  return {Code::kSystem,
          std::string(call) + " of " + std::to_string(bytes) + " bytes: " + std::strerror(errno)};
}

}  // namespace

const std::byte* look_up_registered(const void* pointer, size_t bytes) {
  const auto* const same = static_cast<const std::byte*>(pointer);
  Table& mine = table();
  const std::lock_guard lock(mine.mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto found = mine.holding(address);
  if (found == mine.by_first_page.end()) return same;
  const size_t offset = address - found->first;
  return bytes <= found->second.bytes - offset ? found->second.shared + offset : same;
}

}  // namespace transport

Status register_memory(void* pointer, size_t bytes) {
  using namespace transport;
  const char* const call = "register_memory";
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (pointer == nullptr || bytes == 0 || bytes > SIZE_MAX - address - kSmallPage) {
    return refuse(call, pointer, bytes, "there is no such memory");
  }
  const uintptr_t first = address & ~(kSmallPage - 1);
  const size_t whole = ((address + bytes + kSmallPage - 1) & ~(kSmallPage - 1)) - first;
  auto* const pages = reinterpret_cast<std::byte*>(first);
  Table& mine = table();
  const std::lock_guard lock(mine.mutex);
  const auto next = mine.by_first_page.lower_bound(first);
  if (mine.holding(first) != mine.by_first_page.end() ||
      (next != mine.by_first_page.end() && next->first < first + whole)) {
    return refuse(call, pointer, bytes, "some of its pages are registered already");
  }
  if (lies_in_arena(pages, whole)) {
    return refuse(call, pointer, bytes, "it lies in memory of rondo::alloc, which needs none");
  }
  if (::msync(pages, whole, MS_ASYNC) != 0) {
    return refuse(call, pointer, bytes, "not all of it is mapped");
  }
  const auto entry = mine.by_first_page.try_emplace(first).first;
  auto* const shared =
      static_cast<std::byte*>(alloc(std::max(whole, kAlignedFrom)));  // whole pages
  if (shared == nullptr) {
    mine.by_first_page.erase(entry);
    return {Code::kResourceExhausted,
            "register_memory: no " + std::to_string(whole) +
                " bytes of library memory are left; see RONDO_ARENA_BYTES"};
  }
  std::memcpy(shared, pages, whole);
  const Segment arena = own_arena().segment;
  if (::mmap(pages, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena.fd(),
             shared - arena.base()) == MAP_FAILED) {
    const Status status = failed(call, whole);
    mine.by_first_page.erase(entry);
    rondo::dealloc(shared);
    return status;
  }
  entry->second = {.bytes = whole, .shared = shared, .pointer = pointer};
  registrations.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status unregister_memory(void* pointer) {
  using namespace transport;
  const char* const call = "unregister_memory";
  Table& mine = table();
  const std::lock_guard lock(mine.mutex);
  const auto found = mine.holding(reinterpret_cast<uintptr_t>(pointer));
  if (found == mine.by_first_page.end() || found->second.pointer != pointer) {
    return {Code::kInvalidArgument,
            std::string(call) + " of " + text_of(pointer) +
                ": not a pointer that register_memory() had in this process"};
  }
  const auto [first, registration] = *found;
  void* const own = ::mmap(nullptr, registration.bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return failed(call, registration.bytes);
  std::memcpy(own, registration.shared, registration.bytes);
  if (::mremap(own, registration.bytes, registration.bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               reinterpret_cast<void*>(first)) == MAP_FAILED) {
    const Status status = failed(call, registration.bytes);
    ::munmap(own, registration.bytes);
    return status;
  }
  mine.by_first_page.erase(found);
  registrations.fetch_sub(1, std::memory_order_relaxed);
  rondo::dealloc(registration.shared);
  return {};
}

}  // namespace rondo
