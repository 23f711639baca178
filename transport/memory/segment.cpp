// Segments: creation, sealing, and the process-wide registry of mappings. What they hold is others'
// business.
#include "transport/memory/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "transport/memory/across_fork.hpp"

namespace rondo::transport {
namespace {

constexpr size_t kAlignment = size_t{2} << 20;  // of a huge page, whether or not there will be one
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status failure(const char* call, size_t bytes) {
  const int error = errno;
  const std::string what = std::string(call) + " for " + std::to_string(bytes) +
                           " bytes of shared memory: " + std::strerror(error);
  switch (error) {
    case EMFILE:
    case ENFILE:
      return {Code::kResourceExhausted, what + "; close descriptors, or raise `ulimit -n`"};
    case ENOMEM:
    case EFBIG:
    case ENOSPC:
      return {Code::kResourceExhausted,
              what +
                  "; ask for less (smaller slots, fewer channels, RONDO_ARENA_BYTES), or raise "
                  "`ulimit -v` and the container's memory limit"};
    default:
      return {Code::kSystem, what};
  }
}

/// A memfd counts as a file, and one that grows beyond the limit is a signal that ends the process.
Status check_file_limit(size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return {};
  return {Code::kResourceExhausted,
          std::to_string(bytes) +
              " bytes of shared memory: RLIMIT_FSIZE, which holds for it too, is " +
              std::to_string(limit.rlim_cur) + " bytes; `ulimit -f unlimited` raises it"};
}

/// Maps at a multiple of kAlignment: reserves more than needed, maps over the middle, gives the
/// rest back.
std::byte* map_aligned(int fd, size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) {
    errno = ENOMEM;
    return nullptr;
  }
  const size_t pages = (bytes + 4095) & ~size_t{4095};
  const size_t reserved = pages + kAlignment;
  void* room =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(room);
  const uintptr_t base = (start + kAlignment - 1) & ~(kAlignment - 1);
  void* mapped = ::mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(room, reserved);
    errno = error;
    return nullptr;
  }
  if (base != start) ::munmap(room, base - start);
  const uintptr_t end = base + pages;
  if (end != start + reserved) ::munmap(reinterpret_cast<void*>(end), start + reserved - end);
  return static_cast<std::byte*>(mapped);
}

struct Registry {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<void>> mappings;
  void begin_child() {}  // it has the same mappings
};

Registry& registry() { return across_fork<Registry>(); }

}  // namespace

Segment::Mapping::~Mapping() {
  if (base != nullptr) ::munmap(base, bytes);
}

void Segment::register_fork_handlers() { registry(); }

Segment::Copy Segment::copy() const try {
  const int fd = mapping_->fd.get();
  Copy made;
  // Without the holes, which have never been written or were given back.
  std::vector<std::pair<off_t, off_t>> written;
  for (off_t end = 0;;) {
    const off_t begin = ::lseek(fd, end, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) break;  // nothing is written from `end` on
    end = begin < 0 ? begin : ::lseek(fd, begin, SEEK_HOLE);
    if (end < 0) return {};
    written.emplace_back(begin, end);
  }
  made.bytes = written.empty() ? 4096 : static_cast<size_t>(written.back().second);
  void* const memory = ::mmap(nullptr, made.bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return {};
  made.base = static_cast<std::byte*>(memory);
  // By the kernel: other threads of this process may be writing, as they may in any fork().
  for (auto [at, end] : written) {
    while (at < end) {
      const ssize_t bytes = ::pread(fd, made.base + at, static_cast<size_t>(end - at), at);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) {
        discard(made);
        return {};
      }
      at += bytes;
    }
  }
  return made;
} catch (const std::bad_alloc&) {
  return {};
}

void Segment::discard(const Copy& copy) {
  if (copy.base != nullptr) ::munmap(copy.base, copy.bytes);
}

void Segment::become(const Copy& copy) {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.mappings, [&](const auto& item) { return item.second.lock() == mapping_; });
  }
  const auto replace = [this](int protection) {
    return ::mmap(base(), bytes(), protection,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
  };
  // What has never been written is zeros, or faults if the kernel refuses that much writable memory
  // (vm.overcommit_memory=2). A child that could still write its parent's memory ends here.
  bool is_private = copy.base != nullptr && replace(PROT_READ | PROT_WRITE);
  if (!is_private) is_private = replace(PROT_NONE);
  if (copy.base != nullptr && ::mremap(copy.base, copy.bytes, copy.bytes,
                                       MREMAP_MAYMOVE | MREMAP_FIXED, base()) == MAP_FAILED) {
    is_private = replace(PROT_NONE);
  }
  if (!is_private) std::abort();
}

Result<Segment> Segment::find_or_map(UniqueFd fd, size_t bytes, Pages pages, bool keep_fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return failure("fstat", bytes);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<void>& entry = all.mappings[{facts.st_dev, facts.st_ino}];
  auto mapping = std::static_pointer_cast<Mapping>(entry.lock());
  if (!mapping) {
    mapping = std::make_shared<Mapping>();
    mapping->base = map_aligned(fd.get(), bytes);
    if (mapping->base == nullptr) return failure("mmap", bytes);
    mapping->bytes = bytes;
    mapping->inode = facts.st_ino;
    if (keep_fd) mapping->fd = std::move(fd);
    // Advice only: where the kernel says no, small pages do as well.
    if (pages == Pages::kHuge) ::madvise(mapping->base, bytes, MADV_HUGEPAGE);
    entry = mapping;
    std::erase_if(all.mappings, [](const auto& item) { return item.second.expired(); });
  }
  Segment segment;
  segment.mapping_ = std::move(mapping);
  return segment;
}

Result<Segment> Segment::create(const char* name, size_t bytes, Pages pages) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "a shared segment of 0 bytes");
  RONDO_TRY(check_file_limit(bytes));
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failure("memfd_create", bytes);
  if (bytes > static_cast<size_t>(std::numeric_limits<off_t>::max())) {
    errno = EFBIG;
    return failure("ftruncate", bytes);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return failure("ftruncate", bytes);
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) return failure("sealing", bytes);
  return find_or_map(std::move(fd), bytes, pages, true);
}

Result<Segment> Segment::map(UniqueFd fd, size_t expected_bytes, Pages pages) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) {
    return Status(Code::kInvalidArgument,
                  "descriptor " + std::to_string(fd.get()) +
                      " that should be shared memory: " + std::strerror(errno));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Status(Code::kInvalidArgument,
                  "a peer's shared memory is not sealed against a change of its size (seals " +
                      std::to_string(seals) + "); it does not come from rondo");
  }
  if (expected_bytes == 0 || static_cast<uint64_t>(facts.st_size) != expected_bytes) {
    return Status(Code::kInvalidArgument, "a peer's shared memory has " +
                                              std::to_string(facts.st_size) + " bytes instead of " +
                                              std::to_string(expected_bytes) +
                                              "; do all ranks run the same build and settings?");
  }
  return find_or_map(std::move(fd), expected_bytes, pages, false);
}

}  // namespace rondo::transport
