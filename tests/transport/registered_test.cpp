// rondo::register_memory: the caller's pages as library memory at their addresses.
#include "transport/memory/registered.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "rondo/memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/transport/child.hpp"
#include "transport/memory/arena.hpp"
#include "transport/shm/references.hpp"

namespace rondo::transport::test {
namespace {

constexpr size_t kPage = 4096;

/// Pages of their own, with a number in every word.
class Pages {
 public:
  explicit Pages(size_t pages)
      : words_(pages * kPage / sizeof(uint32_t)),
        base_(static_cast<uint32_t*>(::mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(base_ != MAP_FAILED);
    std::iota(base_, base_ + words_, 1U);
  }
  ~Pages() { ::munmap(base_, bytes()); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  size_t bytes() const { return words_ * sizeof(uint32_t); }
  char* at(size_t byte) { return reinterpret_cast<char*>(base_) + byte; }
  bool unchanged() const {
    for (size_t i = 0; i < words_; ++i) {
      if (base_[i] != i + 1) return false;
    }
    return true;
  }

 private:
  size_t words_;
  uint32_t* base_;
};

/// Registers or unregisters without an error.
void must(const Status& status) { REQUIRE(status.to_string() == "ok"); }

void check_refused(const Status& status, const char* words) {
  CHECK_THAT(status.to_string(), testing::contains(words));
}

TEST_CASE("registered memory keeps its address and content, and is library memory") {
  for (const size_t pages : {1, 2, 511, 512, 1537}) {
    INFO(pages);
    Pages own(pages);
    const size_t skipped = 100, bytes = own.bytes() - 300;
    must(register_memory(own.at(skipped), bytes));
    CHECK(own.unchanged());
    CHECK(is_library_memory(own.at(skipped), bytes));
    CHECK(is_library_memory(own.at(0), own.bytes()));  // whole pages
    CHECK(!is_library_memory(own.at(0), own.bytes() + 1));
    must(unregister_memory(own.at(skipped)));
    CHECK(own.unchanged());
    CHECK(!is_library_memory(own.at(skipped), bytes));
    CHECK(registrations == 0);
  }
}

TEST_CASE("a peer finds registered memory in the arena, whatever part a call passes") {
  Pages own(600), other(3);
  must(register_memory(own.at(0), own.bytes()));
  must(register_memory(other.at(0), other.bytes()));
  const shm::References mine(0, {own_arena()}, false);
  for (const size_t offset : {size_t{0}, size_t{12}, 513 * kPage + 4, 600 * kPage - 4}) {
    const Reference reference = mine.refer(own.at(offset), 4);
    REQUIRE(reference.kind == Reference::kArena);
    std::byte* const seen = mine.resolve(0, reference, 4);
    REQUIRE(seen != nullptr);
    CHECK(reinterpret_cast<char*>(seen) != own.at(offset));
    uint32_t word = 77;
    std::memcpy(seen, &word, sizeof word);
    CHECK(std::memcmp(own.at(offset), &word, sizeof word) == 0);
  }
  CHECK(mine.refer(own.at(599 * kPage), kPage + 1).kind == Reference::kNone);
  uint32_t elsewhere = 0;
  CHECK(mine.refer(&elsewhere, 4).kind == Reference::kNone);
  must(unregister_memory(own.at(0)));
  CHECK(mine.refer(own.at(0), 4).kind == Reference::kNone);
  CHECK(mine.refer(other.at(0), 4).kind == Reference::kArena);
  must(unregister_memory(other.at(0)));
}

TEST_CASE("what is not to be registered is refused, and nothing is lost") {
  Pages own(8);
  check_refused(register_memory(nullptr, 4), "there is no such memory");
  check_refused(register_memory(own.at(0), 0), "there is no such memory");
  check_refused(register_memory(own.at(0), ~size_t{0}), "no such memory");
  check_refused(unregister_memory(own.at(0)), "unregister_memory of 0x");
  check_refused(unregister_memory(own.at(0)), "not a pointer that");
  must(register_memory(own.at(2 * kPage), 2 * kPage));
  for (const size_t first : {0, 1, 2, 3}) {
    check_refused(register_memory(own.at(first * kPage), 3 * kPage),
                  "some of its pages are registered already");
  }
  check_refused(unregister_memory(own.at(2 * kPage + 1)), "not a pointer");
  must(register_memory(own.at(4 * kPage), 1));
  must(unregister_memory(own.at(4 * kPage)));
  must(unregister_memory(own.at(2 * kPage)));
  void* const library = alloc(kPage);
  check_refused(register_memory(library, kPage), "rondo::alloc");
  rondo::dealloc(library);
  REQUIRE(::munmap(own.at(7 * kPage), kPage) == 0);
  check_refused(register_memory(own.at(6 * kPage), 2 * kPage), "mapped");
  CHECK(registrations == 0);
  CHECK(in_child([]() -> std::string {
          ::setenv("RONDO_ARENA_BYTES", "2M", 1);
          Pages large(513);
          const Status status = register_memory(large.at(0), large.bytes());
          return std::string(to_string(status.code())) + (large.unchanged() ? "" : ", changed");
        }) == to_string(Code::kResourceExhausted));
}

TEST_CASE("a child registers memory of its own, and keeps what was registered before") {
  Pages before(2);
  must(register_memory(before.at(0), before.bytes()));
  CHECK(in_child([&]() -> std::string {
          if (!before.unchanged()) return "the content changed";
          if (is_library_memory(before.at(0), 1)) return "the parent's is the child's";
          if (unregister_memory(before.at(0)).ok()) return "the child unregistered the parent's";
          Pages own(2);
          if (!register_memory(own.at(0), own.bytes()).ok()) return "not registered";
          if (!is_library_memory(own.at(0), own.bytes())) return "no library memory";
          if (!unregister_memory(own.at(0)).ok()) return "not unregistered";
          return own.unchanged() ? "" : "the child's own changed";
        }) == "");
  CHECK(before.unchanged());
  must(unregister_memory(before.at(0)));
}

TEST_CASE("after a fork neither process sees the other's writes to library memory") {
  Pages own(600);  // from 2 MiB on the arena gives its memory out in another way
  must(register_memory(own.at(0), own.bytes()));
  auto* const allocated = static_cast<char*>(alloc(own.bytes()));
  auto* const untouched = static_cast<char*>(alloc(3 * kPage));
  REQUIRE((allocated != nullptr && untouched != nullptr));
  std::memset(own.at(0), 1, own.bytes());
  std::memset(allocated, 1, own.bytes());
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const UniqueFd reading(pipe[0]), writing(pipe[1]);
  const auto holds = [&](const char* memory, char value) {
    return std::all_of(memory, memory + own.bytes(), [value](char each) { return each == value; });
  };
  Child child([&]() -> std::string {
    char byte = 0;
    if (::read(reading.get(), &byte, 1) != 1) return "the parent has not written";
    if (!holds(own.at(0), 1) || !holds(allocated, 1) || untouched[kPage] != 0)
      return "the child sees what the parent has written";
    std::memset(own.at(0), 3, own.bytes());
    std::memset(allocated, 3, own.bytes());
    return holds(own.at(0), 3) && holds(allocated, 3)
               ? ""
               : "the child does not see what it has written";
  });
  std::memset(own.at(0), 2, own.bytes());
  std::memset(allocated, 2, own.bytes());
  untouched[kPage] = 2;
  REQUIRE(::write(writing.get(), "x", 1) == 1);
  CHECK(child.text() == "");
  CHECK((holds(own.at(0), 2) && holds(allocated, 2)));
  CHECK(is_library_memory(own.at(0), own.bytes()));
  must(unregister_memory(own.at(0)));
  CHECK(holds(own.at(0), 2));
  rondo::dealloc(allocated);
  rondo::dealloc(untouched);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they need address space
TEST_CASE("without memory for a copy library memory faults in a forked child") {
  Pages own(2);
  must(register_memory(own.at(0), own.bytes()));
  std::memset(own.at(0), 1, own.bytes());
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit none{.rlim_cur = pages * kPage, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_AS, &none) == 0);
  Child child([&]() -> std::string {
    ::signal(SIGSEGV, SIG_DFL);
    std::memset(own.at(0), 2, own.bytes());
    return "wrote";
  });
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(child.text() == "ended by signal " + std::to_string(SIGSEGV));
  CHECK(std::all_of(own.at(0), own.at(0) + own.bytes(), [](char each) { return each == 1; }));
  must(unregister_memory(own.at(0)));
}
#endif

TEST_CASE("memory is registered, looked up and forked by several threads at once") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int round = 0; round < 50; ++round) {
        Pages own(3);
        if (!register_memory(own.at(0), own.bytes()).ok()) std::abort();
        if (!is_library_memory(own.at(kPage), kPage)) std::abort();
        if (!unregister_memory(own.at(0)).ok() || !own.unchanged()) std::abort();
      }
    });
  }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // a child may need their locks
  for (int i = 0; i < 10; ++i) {
    CHECK(in_child([]() -> std::string {
            Pages own(1);
            return register_memory(own.at(0), 1).ok() ? "" : "not registered";
          }) == "");
  }
#endif
  for (std::thread& thread : threads) thread.join();
  CHECK(registrations == 0);
}

}  // namespace
}  // namespace rondo::transport::test
