// Ranks with a communicator each, closed-form data, and its exact results: the frame of the
// communicator's tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"

namespace rondo::testing {

constexpr int kSkipped = 77;  // the exit status that CTest shows as skipped

/// Ends the program as skipped unless so much memory is free.
void need_memory(size_t bytes);

/// TSan sees threads; it has no use for processes.
#if defined(__SANITIZE_THREAD__)
inline const std::vector<How> kHows{How::kThreads};
#else
inline const std::vector<How> kHows{How::kThreads, How::kForks};
#endif

/// The same for tests of thousands of calls. Over the wire (RONDO_TEST_TRANSPORT=lazy) ranks share
/// nothing but links, in a process and between processes: there these are processes alone.
std::vector<How> exhaustive_hows();

inline std::string how_name(How how) { return how == How::kThreads ? "threads" : "processes"; }

/// Numbers of ranks; sanitized builds go as far as the third.
inline std::vector<int> sizes(std::vector<int> all) {
  if (kSanitized) all.resize(std::min<size_t>(all.size(), 3));
  return all;
}

/// Where ranks meet that have `directory` to themselves: there, or over TCP where they are on several
/// hosts (RONDO_TEST_TRANSPORT).
std::string meeting_place(const std::string& directory);
/// tcp://127.0.0.1 with a port that follows from the directory.
std::string loopback_place(const std::string& directory);

/// `config` completed for one rank of a world that meets in `directory`.
inline Config world_config(const std::string& directory, int rank, int size, Config config = {}) {
  config.rank = rank;
  config.world_size = size;
  config.rendezvous = meeting_place(directory);
  if (config.stall_timeout == Config{}.stall_timeout)
    config.stall_timeout = std::chrono::seconds{30};
  config.bootstrap_timeout = std::chrono::seconds{30};
  return config;
}

inline void expect_ok(const Status& status, const std::string& what) {
  expect(status.ok(), what + ": " + status.to_string());
}

/// Runs body(communicator) on `size` ranks.
inline std::vector<RankResult> run_world(How how, int size,
                                         const std::function<void(Communicator&)>& body,
                                         const Config& config = {},
                                         std::chrono::seconds limit = std::chrono::seconds{100}) {
  const TempDirectory directory;
  return run_ranks(
      how, size,
      [&](int rank) {
        auto made = Communicator::create(world_config(directory.path(), rank, size, config));
        expect(made.ok(), "create: " + made.status().to_string());
        body(*made);
      },
      limit);
}

/// For loops over `library`: plain memory, then library memory. Plain alone over the wire, which maps
/// neither and so treats them alike.
std::vector<bool> plain_and_library();

/// Memory of either kind, with guard bytes in front and behind and any misalignment.
class Buffer {
 public:
  Buffer(size_t bytes, bool library, size_t misalignment = 0)
      : bytes_(bytes), library_(library), misalignment_(misalignment) {
    const size_t all = bytes + misalignment + 2 * kGuard;
    base_ = static_cast<unsigned char*>(library ? alloc(all) : std::malloc(all));
    expect(base_ != nullptr, "no memory");
    std::memset(base_, kFill, all);
  }
  ~Buffer() {
    if (library_) {
      rondo::dealloc(base_);
    } else {
      std::free(base_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  unsigned char* data() { return base_ + kGuard + misalignment_; }
  size_t bytes() const { return bytes_; }
  void check_guards(const std::string& what) {
    const std::vector<unsigned char> guard(kGuard, kFill);
    if (std::memcmp(base_, guard.data(), kGuard) != 0 ||
        std::memcmp(data() + bytes_, guard.data(), kGuard) != 0) {
      expect(false, what + ": wrote outside the buffer");
    }
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kFill = 0xa5;
  size_t bytes_;
  bool library_;
  size_t misalignment_;
  unsigned char* base_;
};

/// The small integer that `rank` contributes at element i; different enough between ranks and
/// elements that a missing, doubled or misplaced contribution changes the result, small enough for
/// every type and operator to be exact.
int contribution(int rank, size_t i, ReduceOp op);

/// contribution() has the same values again after so many elements. fill() and check() compute so
/// many and copy them: computing all took half of the tests' time.
constexpr size_t kRepeatsAfter = 3 * 11 * 13;

/// What all ranks' contributions give.
double expected(int size, size_t i, ReduceOp op, DataType type);

void store(unsigned char* at, DataType type, double value);

void fill(Buffer& buffer, size_t from, size_t count, DataType type, ReduceOp op, int rank,
          size_t first = 0);

/// Bit by bit. REQUIRES: value(i + kRepeatsAfter) == value(i).
void check(Buffer& buffer, size_t from, size_t count, DataType type,
           const std::function<double(size_t)>& value, const std::string& what);

}  // namespace rondo::testing
