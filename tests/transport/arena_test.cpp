// Library memory: rondo::alloc, rondo::dealloc, and what becomes of them after fork().
#include "transport/memory/arena.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "rondo/memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/transport/child.hpp"
#include "transport/memory/free_list.hpp"

namespace rondo::transport::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool all(const void* memory, size_t bytes, unsigned char value) {
  const auto* at = static_cast<const unsigned char*>(memory);
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != value) return false;
  }
  return true;
}

bool aligned(const void* pointer, size_t to) {
  return reinterpret_cast<uintptr_t>(pointer) % to == 0;
}

int64_t blocks_in_use() {
  struct stat facts {};
  const auto exported = export_arena();
  return exported.ok() && ::fstat(exported.value().fd, &facts) == 0 ? facts.st_blocks * 512 : -1;
}

/// In a child of its own with RONDO_ARENA_BYTES set.
template <class Function>
std::string with_arena(const char* bytes, Function function) {
  return in_child([&]() -> std::string {
    ::setenv("RONDO_ARENA_BYTES", bytes, 1);
    return function();
  });
}

TEST_CASE("the arenas of all ranks fit the address space, whatever the machine's memory") {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  CHECK(default_arena_bytes(20 * kGiB, 1) == 32 * kGiB);
  CHECK(default_arena_bytes(20 * kGiB, 64) == 32 * kGiB);
  for (const int ranks : {1, 2, 3, 64, 100, 1024}) {
    for (const uint64_t memory : {kGiB, 2048 * kGiB, 65'536 * kGiB}) {
      const uint64_t bytes = default_arena_bytes(memory, ranks);
      CHECK(bytes * static_cast<uint64_t>(ranks) <= kArenaAddresses);
      CHECK(bytes >= std::min(memory, 64 * kGiB));
    }
  }
}

TEST_CASE("memory is aligned, zero, zero again after use, and known as library memory") {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{4097}, size_t{300'000}, 2 * kMiB - 1,
        2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 12'345}) {
    INFO(bytes);
    for (int round = 0; round < 3; ++round) {
      void* memory = alloc(bytes);
      REQUIRE(memory != nullptr);
      CHECK(aligned(memory, bytes < 2 * kMiB ? 64 : 2 * kMiB));
      CHECK(all(memory, bytes, 0));
      CHECK(is_library_memory(memory, bytes));
      std::memset(memory, 0xab, bytes);
      rondo::dealloc(memory);
    }
  }
  rondo::dealloc(nullptr);
  int local = 0;
  CHECK(!is_library_memory(&local, sizeof(local)));
  CHECK(!is_library_memory(nullptr, 0));
}

TEST_CASE("alloc(0) gives unique pointers") {
  std::set<void*> pointers;
  for (int i = 0; i < 10; ++i) pointers.insert(alloc(0));
  CHECK(pointers.size() == 10);
  CHECK(pointers.count(nullptr) == 0);
  for (void* pointer : pointers) rondo::dealloc(pointer);
}

TEST_CASE("freed large memory goes back to the system") {
  const int64_t before = blocks_in_use();
  void* memory = alloc(32 * kMiB);
  REQUIRE(memory != nullptr);
  std::memset(memory, 1, 32 * kMiB);
  CHECK(blocks_in_use() >= static_cast<int64_t>(32 * kMiB));
  rondo::dealloc(memory);
  CHECK(blocks_in_use() <= before + static_cast<int64_t>(kMiB));
}

TEST_CASE("neighbours merge, in every order of freeing") {
  for (int order = 0; order < 6; ++order) {
    FreeList list(4096);
    const size_t a = *list.take(1024, 64), b = *list.take(1024, 64), c = *list.take(2048, 64);
    CHECK(!list.take(64, 64));
    std::vector<size_t> offsets{a, b, c};
    for (int step = 0; step < order; ++step) std::next_permutation(offsets.begin(), offsets.end());
    for (const size_t offset : offsets) list.insert(offset, *list.remove(offset));
    CHECK(list.free_blocks() == 1);
    CHECK(list.take(4096, 64) == 0u);
  }
  FreeList list(4096);
  CHECK(*list.take(64, 64) == 0);
  CHECK(*list.take(64, 1024) == 1024);
  CHECK(*list.take(64, 64) == 64);  // what alignment skipped is used
  CHECK(!list.remove(128));
}

TEST_CASE("an exhausted arena gives null, and recovers") {
  CHECK(with_arena("8M", []() -> std::string {
          if (alloc(9 * kMiB) != nullptr) return "more than there is";
          if (alloc(~size_t{0}) != nullptr) return "overflow";
          std::vector<void*> blocks;
          while (void* memory = alloc(kMiB)) blocks.push_back(memory);
          if (blocks.size() != 8) return std::to_string(blocks.size()) + " blocks";
          if (alloc(1) != nullptr) return "one byte too many";
          for (void* block : blocks) rondo::dealloc(block);
          return alloc(8 * kMiB) != nullptr ? "" : "did not recover";
        }) == "");
}

TEST_CASE("RONDO_ARENA_BYTES: sizes, off, nonsense") {
  const auto size = [](const char* text) {
    return with_arena(text, []() -> std::string {
      const auto exported = export_arena();
      if (!exported.ok()) return exported.status().to_string();
      return std::to_string(exported.value().bytes) + (exported.value().fd < 0 ? " off" : "");
    });
  };
  CHECK(size("4194304") == "4194304");
  CHECK(size("64M") == "67108864");
  CHECK(size("1G") == "1073741824");
  CHECK(size("3") == "2097152");  // whole huge pages
  CHECK(size("0") == "0 off");
  CHECK(size("") == "34359738368");  // as if there were none
  for (const char* text : {"M", "64MB", "-1", " 5", "12x", "99999999999999999999", "100T"}) {
    INFO(text);
    CHECK_THAT(size(text), Catch::Matchers::StartsWith("invalid argument: RONDO_ARENA_BYTES='" +
                                                       std::string(text) + "'"));
  }
  CHECK(with_arena("0", []() -> std::string {
          return alloc(1) == nullptr && own_arena().base == nullptr ? "" : "memory from nowhere";
        }) == "");
  CHECK(with_arena("what", []() -> std::string { return alloc(1) == nullptr ? "" : "memory"; }) ==
        "");
}

TEST_CASE("threads share the arena") {
  constexpr int kThreads = 4;
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([id, &failure = failures[static_cast<size_t>(id)]] {
      std::mt19937 random(static_cast<unsigned>(id));
      const auto mark = static_cast<unsigned char>(id + 1);
      std::vector<std::pair<void*, size_t>> held;
      for (int step = 0; step < 400; ++step) {
        if (held.size() < 8) {
          const size_t bytes = random() % 40'000;
          void* memory = alloc(bytes);
          if (memory == nullptr || !all(memory, bytes, 0)) failure = "not zero";
          if (memory == nullptr) return;
          std::memset(memory, mark, bytes);
          held.emplace_back(memory, bytes);
        } else {
          const size_t which = random() % held.size();
          if (!all(held[which].first, held[which].second, mark)) failure = "overwritten";
          rondo::dealloc(held[which].first);
          held.erase(held.begin() + static_cast<ptrdiff_t>(which));
        }
      }
      for (auto [memory, bytes] : held) rondo::dealloc(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure == "");
}

TEST_CASE("a forked child has an arena of its own") {
  auto* inherited = static_cast<unsigned char*>(alloc(10'000));
  REQUIRE(inherited != nullptr);
  std::memset(inherited, 5, 10'000);
  const uint64_t parents_id = export_arena().value().id;
  CHECK(in_child([&]() -> std::string {
          if (!all(inherited, 10'000, 5)) return "inherited memory is not readable";
          if (is_library_memory(inherited, 1)) return "inherited memory counts as own";
          rondo::dealloc(inherited);  // ignored
          auto* mine = static_cast<unsigned char*>(alloc(10'000));
          if (mine == nullptr || mine == inherited) return "no memory of its own";
          if (export_arena().value().id == parents_id) return "the parent's arena";
          std::memset(mine, 6, 10'000);
          // And once more, so that two ancestors' memory must be told from one's own.
          const std::string grandchild = in_child([&]() -> std::string {
            rondo::dealloc(inherited);
            rondo::dealloc(mine);
            void* own = alloc(100);
            return own != nullptr && own != mine && own != inherited ? "" : "grandchild";
          });
          rondo::dealloc(mine);
          return grandchild;
        }) == "");
  CHECK(all(inherited, 10'000, 5));
  rondo::dealloc(inherited);
}

TEST_CASE("freeing what is not ours, or twice, stops the program") {
  const auto dies = [](auto function) {
    return in_child([&]() -> std::string {
      ::signal(SIGABRT, SIG_DFL);
      if (::freopen("/dev/null", "w", stderr) == nullptr) return "no /dev/null";
      function();
      return "survived";
    });
  };
  const std::string aborted = "ended by signal " + std::to_string(SIGABRT);
  CHECK(dies([] {
          void* memory = alloc(100);
          rondo::dealloc(memory);
          rondo::dealloc(memory);
        }) == aborted);
  CHECK(dies([] { rondo::dealloc(static_cast<std::byte*>(alloc(100)) + 64); }) == aborted);
  CHECK(dies([] {
          int local = 0;
          rondo::dealloc(&local);
        }) == aborted);
}

TEST_CASE(
    "attaching the own arena gives the own base; a peer's is mapped once and kept by its view") {
  void* memory = alloc(1);
  const auto exported = export_arena();
  REQUIRE(exported.ok());
  auto own = attach_arena(UniqueFd(::dup(exported.value().fd)), exported.value().bytes);
  REQUIRE(own.ok());
  CHECK(own->base == own_arena().base);
  CHECK(own->id == own_arena().id);
  rondo::dealloc(memory);

  auto peer = Segment::create("peer-arena", 4 * kMiB);
  REQUIRE(peer.ok());
  UniqueFd fd(::dup(peer->fd()));
  UniqueFd again(::dup(peer->fd()));
  *peer = Segment();
  auto view = attach_arena(std::move(fd), 4 * kMiB);
  auto other = attach_arena(std::move(again), 4 * kMiB);
  REQUIRE((view.ok() && other.ok()));
  CHECK(view->base == other->base);
  CHECK(view->id != own->id);
  view->base[4 * kMiB - 1] = std::byte{1};
  CHECK(!attach_arena(UniqueFd(::dup(exported.value().fd)), exported.value().bytes / 2).ok());
}

}  // namespace
}  // namespace rondo::transport::test
