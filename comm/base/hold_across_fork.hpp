// A mutex of the whole process that is held for the length of every fork(). A child that is forked
// while another thread holds it would find it locked for ever.
#pragma once

#include <pthread.h>

#include <mutex>

namespace rondo::base {

/// From the first call on. The thread that forks must not hold the mutex.
template <std::mutex& mutex>
void hold_across_fork() {
  [[maybe_unused]] static const int registered =
      pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
}

}  // namespace rondo::base
