// Waiting in a test until something has happened: a condition with a limit, never a length of time.
// The board tells a test what ranks do just now.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "comm/status/find.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Fails, by throwing, when `happened` is still false after half a minute.
inline void await(const std::string& what, const std::function<bool()>& happened) {
  const auto limit = Clock::now() + std::chrono::seconds(30);
  while (!happened()) {
    expect(Clock::now() < limit, "waited in vain: " + what);
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // between two looks
  }
}

/// The board of the one communicator that process `pid` belongs to. It can be read until the test
/// ends, also when its ranks have ended before.
inline status::MappedBoard board_of(pid_t pid) {
  auto boards = status::boards_of_process(pid);
  expect(boards.ok(), boards.status().to_string());
  expect_eq(boards->size(), size_t{1}, "communicators");
  return std::move(boards->front());
}

/// Waits until `rank`, in a long wait, has looked round (health/watch.hpp) once from beginning to
/// end, or somebody has found an error.
inline void await_look_round(const status::MappedBoard& board, int rank) {
  const board::BoardView view = board.view();
  const auto& looks = view.state(rank).heartbeat;
  const uint64_t before = looks.load();
  await("rank " + std::to_string(rank) + " looks round",
        [&] { return looks.load() >= before + 2 || view.has_error(); });
}

}  // namespace rondo::testing
