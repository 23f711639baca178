// A stream of the fake GPU, which is a thread and its tasks, and an event.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "tests/comm/device/fake_graph.hpp"

namespace rondo::device::test {

struct FakeQueue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<FakeGraph::Task> tasks;
  bool busy = false, ends = false;
  bool urgent = false;  // which changes nothing: every stream here has a thread of its own
  std::atomic<bool> held{false}, waits_for_event{false};
  std::atomic<uint64_t> capture{0};  // into which captures_ it goes; 0: none
  uint64_t identity = 0;
  std::thread worker;
};

struct FakeEvent {
  uint64_t recorded = 0, happened = 0;
  uint64_t captured = 0;  // the capture in which it was last recorded, instead
  FakeCapture::Ends captured_after;
  bool timed = false;
  std::chrono::steady_clock::time_point at{};  // the last time that it happened
};

}  // namespace rondo::device::test
