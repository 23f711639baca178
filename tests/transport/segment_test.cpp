// Segments: sealed, checked, mapped once, and exhaustion as a value.
#include "transport/memory/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/transport/child.hpp"

namespace rondo::transport::test {
namespace {

int open_descriptors() {
  int count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

Segment created(size_t bytes) {
  auto segment = Segment::create("segment-test", bytes);
  REQUIRE(segment.ok());
  return *segment;
}

UniqueFd copy_of(const Segment& segment) { return UniqueFd(::dup(segment.fd())); }

/// A memfd that rondo did not make.
UniqueFd foreign(size_t bytes, int seals) {
  UniqueFd fd(::memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

TEST_CASE("a segment is zero, aligned, sparse, and its size is sealed") {
  constexpr size_t kBytes = size_t{64} << 30;
  const Segment segment = created(kBytes);
  CHECK(segment.bytes() == kBytes);
  CHECK(reinterpret_cast<uintptr_t>(segment.base()) % (2 << 20) == 0);
  CHECK(segment.base()[0] == std::byte{0});
  CHECK(segment.base()[kBytes - 1] == std::byte{0});
  segment.base()[kBytes / 2] = std::byte{7};
  struct stat facts {};
  REQUIRE(::fstat(segment.fd(), &facts) == 0);
  CHECK(facts.st_blocks * 512 <= 64 << 10);
  CHECK(::ftruncate(segment.fd(), 4096) != 0);
  CHECK(::ftruncate(segment.fd(), static_cast<off_t>(2 * kBytes)) != 0);
  CHECK((::fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("all segments of one memfd share one mapping, and the last one unmaps it") {
  Segment first = created(10'000);
  std::byte* const base = first.base();
  auto second = Segment::map(copy_of(first), 10'000);
  REQUIRE(second.ok());
  CHECK(second->base() == base);
  CHECK(second->id() == first.id());
  base[5] = std::byte{9};
  first = Segment();
  CHECK(first.base() == nullptr);
  CHECK(second->base()[5] == std::byte{9});
  *second = Segment();
  unsigned char resident = 0;
  CHECK(::mincore(base, 4096, &resident) != 0);  // not mapped any more
}

TEST_CASE("no descriptor is stdin's, stdout's or stderr's, where the program has none") {
  const UniqueFd kept(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  ::close(STDIN_FILENO);
  auto segment = Segment::create("test", 4096);
  UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd again;
  again.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const bool is_closed = ::fcntl(STDIN_FILENO, F_GETFD) == -1;
  if (kept.valid()) ::dup2(kept.get(), STDIN_FILENO);
  REQUIRE(segment.ok());
  for (const int fd : {segment->fd(), file.get(), again.get()}) {
    CHECK(fd > STDERR_FILENO);
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(is_closed);
}

TEST_CASE("descriptors are closed, also when they are refused") {
  const int before = open_descriptors();
  {
    const Segment segment = created(4096);
    CHECK(open_descriptors() == before + 1);
    const auto again = Segment::map(copy_of(segment), 4096);
    CHECK(again.ok());
    CHECK(!Segment::map(copy_of(segment), 8192).ok());
    CHECK(open_descriptors() == before + 1);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("what is not the segment that was promised is refused") {
  const Segment segment = created(8192);
  const auto refused = [](UniqueFd fd, size_t bytes, const std::string& part) {
    const auto result = Segment::map(std::move(fd), bytes);
    CHECK(result.status().code() == Code::kInvalidArgument);
    CHECK_THAT(result.status().message(), testing::contains(part));
  };
  refused(copy_of(segment), 4096, "8192 bytes instead of 4096");
  refused(copy_of(segment), 0, "instead of 0");
  refused(foreign(8192, 0), 8192, "not sealed");
  refused(foreign(8192, F_SEAL_SHRINK), 8192, "not sealed");
  refused(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 8192, "not sealed");
  refused(UniqueFd(-1), 8192, "descriptor -1");
  CHECK(Segment::map(foreign(8192, F_SEAL_SHRINK | F_SEAL_GROW), 8192).ok());
  CHECK(Segment::create("segment-test", 0).status().code() == Code::kInvalidArgument);
}

TEST_CASE("no descriptors, no address space: a value that says what to do") {
  CHECK(in_child([]() -> std::string {
          rlimit limit{};
          ::getrlimit(RLIMIT_NOFILE, &limit);
          limit.rlim_cur = static_cast<rlim_t>(open_descriptors());
          ::setrlimit(RLIMIT_NOFILE, &limit);
          std::vector<Segment> segments;
          for (int i = 0; i < 100; ++i) {
            auto segment = Segment::create("segment-test", 4096);
            if (segment.ok()) {
              segments.push_back(*segment);
              continue;
            }
            if (segment.status().code() != Code::kResourceExhausted) return "wrong code";
            return segment.status().message();
          }
          return "never refused";
        }) ==
        "memfd_create for 4096 bytes of shared memory: Too many open files; close descriptors, or "
        "raise `ulimit -n`");

  const std::string text = in_child([]() -> std::string {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlimit limit{.rlim_cur = pages * 4096 + (rlim_t{64} << 20), .rlim_max = RLIM_INFINITY};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return "cannot limit";
    const auto segment = Segment::create("segment-test", size_t{1} << 30);
    return segment.status().code() == Code::kResourceExhausted ? segment.status().message()
                                                               : "wrong code";
  });
  CHECK_THAT(text,
             testing::contains("mmap for 1073741824 bytes") && testing::contains("ulimit -v"));

  for (const size_t bytes : {size_t{1} << 47, size_t{1} << 62, ~size_t{0}}) {
    CHECK(Segment::create("segment-test", bytes).status().code() == Code::kResourceExhausted);
  }
}

TEST_CASE("a limit on the size of files is a value, and no signal") {
  const std::string text = in_child([]() -> std::string {
    const rlimit limit{.rlim_cur = 102'400, .rlim_max = RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "cannot limit";
    if (!Segment::create("segment-test", 102'400).ok()) return "refused what is allowed";
    const Status status = Segment::create("segment-test", 102'401).status();
    return status.code() == Code::kResourceExhausted ? status.message() : "wrong code";
  });
  CHECK(text ==
        "102401 bytes of shared memory: RLIMIT_FSIZE, which holds for it too, is 102400 bytes; "
        "`ulimit -f unlimited` raises it");
}

}  // namespace
}  // namespace rondo::transport::test
