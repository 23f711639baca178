// What this process has one of, guarded by a mutex, where fork() may come at any time: the mutex is
// held for the length of every fork(), so that a child never finds it locked by a thread that it does
// not have.
#pragma once

#include <pthread.h>

#include <mutex>

namespace rondo::transport {

/// The process's T, made by the first call and never destroyed: threads may still use it while static
/// objects are being destroyed. T has a `mutex`, and begin_child(), which the child calls under it to
/// forget what is its parent's alone. It may have before_fork() and after_fork(), which the parent
/// calls under the mutex. fork() takes the mutexes of several Ts in the reverse order of their construction: if one
/// is taken under another, T's constructor makes the inner one's owner. The child begins with the T
/// that was made first. The thread that forks holds none of the mutexes.
template <class T>
T& across_fork() {
  static T* const the_one = [] {
    T* const made = new T;
    ::pthread_atfork(
        [] {
          across_fork<T>().mutex.lock();
          if constexpr (requires(T & one) { one.before_fork(); }) across_fork<T>().before_fork();
        },
        [] {
          if constexpr (requires(T & one) { one.after_fork(); }) across_fork<T>().after_fork();
          across_fork<T>().mutex.unlock();
        },
        [] {
          across_fork<T>().begin_child();
          across_fork<T>().mutex.unlock();
        });
    return made;
  }();
  return *the_one;
}

}  // namespace rondo::transport
