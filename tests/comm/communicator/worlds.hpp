// Whole worlds of ranks in one line: as threads and processes, of several sizes, or as processes that
// a test tells what to do and kills; and checks of the errors that they must get.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {

using namespace std::chrono_literals;

/// In so many seconds every error that is not a timeout has come. An idle machine takes
/// milliseconds, and every deadline is later.
inline constexpr double kSoonS = 6;
inline constexpr DataType kFloat = DataType::kFloat32, kInt = DataType::kInt32;

/// `status` has this code, and its text has these parts.
template <class... Parts>
void expect_error(const Status& status, Code code, const Parts&... parts) {
  expect(status.code() == code, "another code: " + status.to_string());
  (expect_contains(status.message(), parts), ...);
}

inline void expect_refused(const Status& status, const std::string& says) {
  expect_error(status, Code::kInvalidArgument, says);
}

/// `status`, or the error that one of so many barriers gets.
inline Status error_of_barriers(Communicator& comm, Status status = {}, int most = 1'000'000) {
  for (int turn = 0; turn < most && status.ok(); ++turn) status = comm.barrier();
  return status;
}

/// The error with which one of many calls ends.
template <class Call>
Status until_failure(const Call& call) {
  Status status;
  while (status.ok()) status = call();
  return status;
}

/// The value of `result`, without which the rank fails.
template <class T>
T expect_value(Result<T> result, const std::string& what) {
  expect_ok(result.status(), what);
  return std::move(*result);
}

/// Of one rank, without a place to meet.
inline Config config_alone() {
  Config config;
  config.rank = 0;
  config.world_size = 1;
  return config;
}

inline Communicator created(const Config& config) {
  return expect_value(Communicator::create(config), "create");
}

/// The default configuration but for one field.
template <class T>
Config with(T Config::*field, std::type_identity_t<T> value) {
  Config config;
  config.*field = std::move(value);
  return config;
}

/// This rank's part of a split, which it must have.
inline Communicator part_of(Communicator& comm, int color, int key = 0) {
  auto part = expect_value(comm.split(color, key), "split");
  expect(part.has_value(), "no part");
  return std::move(*part);
}

/// `buffer` is the sum of what the first `ranks` ranks filled in, from number `first` on.
inline void expect_sum(Buffer& buffer, size_t count, DataType type, int ranks, size_t first = 0) {
  check(
      buffer, 0, count, type,
      [&](size_t i) { return expected(ranks, first + i, ReduceOp::kSum, type); }, "sum");
}

using WorldBody = std::function<void(Communicator&)>;

/// Runs body(communicator) on `size` ranks, none of which may fail.
inline void run_ok(How how, int size, const Config& config, const WorldBody& body) {
  INFO(how_name(how) << ", " << size << " ranks");
  require_all_ok(run_world(how, size, body, config));
}
inline void run_ok(How how, int size, const WorldBody& body) { run_ok(how, size, {}, body); }

/// The same as threads and as processes, or in these ways alone, with each of these numbers of ranks.
inline void run_each(const std::vector<int>& sizes, const Config& config, const WorldBody& body,
                     const std::vector<How>& hows = kHows) {
  for (const How how : hows) {
    for (const int size : sizes) run_ok(how, size, config, body);
  }
}
inline void run_each(const std::vector<int>& sizes, const WorldBody& body) {
  run_each(sizes, {}, body);
}
inline void run_exhaustively(const std::vector<int>& sizes, const Config& config,
                             const WorldBody& body) {
  run_each(sizes, config, body, exhaustive_hows());
}

/// A value that threads and forked processes share.
template <class T>
class Shared {
 public:
  Shared()
      : value_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                         0)) T{}) {}
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};
using SharedCount = Shared<std::atomic<int>>;

/// Sends this process `signal` at a time of the monotonic clock, wherever it is then.
inline void signal_self_at(int64_t at_ns, int signal) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  timer_t timer;
  expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  itimerspec when{};
  when.it_value = {.tv_sec = at_ns / 1'000'000'000, .tv_nsec = at_ns % 1'000'000'000};
  expect(timer_settime(timer, TIMER_ABSTIME, &when, nullptr) == 0, "timer_settime");
}

/// Random moments of each kind; RONDO_TEST_MOMENTS for more.
inline int moments(int usual) {
  const char* const text = std::getenv("RONDO_TEST_MOMENTS");
  return text != nullptr ? std::atoi(text) : usual;
}

inline std::vector<int> all_but(const std::vector<int>& gone, int size) {
  std::vector<int> left;
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(gone.begin(), gone.end(), rank) == gone.end()) left.push_back(rank);
  }
  return left;
}

/// No rank failed but these, which may have.
inline void require_ok_but(const std::vector<int>& gone, const std::vector<RankResult>& results) {
  std::vector<RankResult> theirs;
  for (const int rank : all_but(gone, static_cast<int>(results.size()))) {
    theirs.push_back(results[static_cast<size_t>(rank)]);
  }
  require_all_ok(theirs);
}

/// Forked ranks, told and awaited several at a time.
class Gang : public ForkGang {
 public:
  Gang(int size, const Body& body, std::chrono::seconds limit = 60s)
      : ForkGang(size, body, limit), size_(size) {}

  void await_each(const std::vector<int>& ranks, const std::string& event) {
    for (const int rank : ranks) await(rank, event);
  }
  void await_all(const std::string& event) { await_each(all_but({}, size_), event); }
  void await_ends(const std::vector<int>& ranks) {
    for (const int rank : ranks) await_end(rank);
  }
  void tell_each(const std::vector<int>& ranks, const std::string& word) {
    for (const int rank : ranks) tell(rank, word);
  }
  void tell_all(const std::string& word) { tell_each(all_but({}, size_), word); }
  /// Joins; no rank failed but these.
  void require_ok(const std::vector<int>& gone = {}) { require_ok_but(gone, join()); }

 private:
  int size_;
};

/// Forked ranks with a communicator each.
class WorldGang : TempDirectory, public Gang {
 public:
  using Body = std::function<void(Communicator& comm, Link& link)>;
  WorldGang(int size, const Config& config, const Body& body)
      : Gang(size, [&](int rank, Link& link) {
          Communicator comm = created(world_config(path(), rank, size, config));
          body(comm, link);
        }) {}
  WorldGang(int size, const Body& body) : WorldGang(size, Config(), body) {}
};

}  // namespace rondo::testing
