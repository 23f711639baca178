// Ranks as threads, and the helpers around them; forked ranks are in fork_gang.cpp.
#include "tests/harness/rank_group.hpp"

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/harness/catch.hpp"

namespace rondo::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<RankResult> run_threads(int n, const std::function<void(int)>& body,
                                    std::chrono::seconds limit) {
  std::mutex mutex;
  std::condition_variable ended;
  int running = n;
  std::vector<bool> done(static_cast<size_t>(n), false);
  std::vector<RankResult> results(static_cast<size_t>(n));
  const auto start = Clock::now();

  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      RankResult result;
      result.rank = rank;
      result.ok = true;
      try {
        body(rank);
      } catch (const std::exception& e) {
        result.ok = false;
        result.message = e.what();
      }
      result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
      std::lock_guard lock(mutex);
      results[static_cast<size_t>(rank)] = std::move(result);
      done[static_cast<size_t>(rank)] = true;
      --running;
      ended.notify_all();
    });
  }

  std::unique_lock lock(mutex);
  if (!ended.wait_until(lock, start + limit, [&] { return running == 0; })) {
    std::fprintf(stderr,
                 "after %lld s these thread ranks hang:", static_cast<long long>(limit.count()));
    for (int rank = 0; rank < n; ++rank) {
      const auto i = static_cast<size_t>(rank);
      if (!done[i]) std::fprintf(stderr, " %d", rank);
      if (done[i] && !results[i].ok) {
        std::fprintf(stderr, " (rank %d failed: %s)", rank, results[i].message.c_str());
      }
    }
    std::fputc('\n', stderr);
    std::abort();
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace

void expect(bool condition, const std::string& message) {
  if (!condition) throw std::runtime_error(message);
}

std::vector<RankResult> run_ranks(How how, int n, const std::function<void(int)>& body,
                                  std::chrono::seconds limit) {
  if (how == How::kThreads) return run_threads(n, body, limit);
  return ForkGang(
             n, [&](int rank, Link&) { body(rank); }, limit)
      .join();
}

void require_all_ok(const std::vector<RankResult>& results) {
  std::string failures;
  for (const RankResult& result : results) {
    if (result.ok) continue;
    failures += "rank " + std::to_string(result.rank) + ": " + result.message;
    if (result.signal != 0) failures += " (signal " + std::to_string(result.signal) + ")";
    failures += "\n";
  }
  INFO(failures);
  REQUIRE(failures.empty());
}

TempDirectory::TempDirectory() {
  std::string pattern = std::filesystem::temp_directory_path() / "rondo-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace rondo::testing
