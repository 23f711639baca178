// See interrupt.hpp.
#include "python/src/interrupt.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <thread>

namespace rondo::python {
namespace {

struct Interrupts {
  bool caught = false;
  int event = -1;  // counts signals that came during a call
  pthread_t main_thread{};
  struct sigaction before {};
  bool watched = false;                   // this process has the thread; a forked child has not
  std::mutex mutex;                       // of `waiting`: held while it is aborted
  rondo_communicator* waiting = nullptr;  // what the main thread waits in
};

Interrupts& interrupts() {
  static auto* const state = new Interrupts;  // a handler may run at any time until the end
  return *state;
}

void on_interrupt(int signal, siginfo_t* info, void* context) {
  const int kept = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(interrupts().event, &one, sizeof one);
  const struct sigaction& before = interrupts().before;
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
  errno = kept;
}

void watch() {
  for (uint64_t signals = 0;;) {
    if (read(interrupts().event, &signals, sizeof signals) < 0 && errno != EINTR) return;
    const std::lock_guard lock(interrupts().mutex);
    if (interrupts().waiting != nullptr) {
      rondo_abort(interrupts().waiting, "interrupted by Ctrl-C (SIGINT)");
    }
  }
}

void start_watching() {
  interrupts().watched = true;
  sigset_t all, kept;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &kept);  // signals are for the program's threads
  std::thread(watch).detach();
  pthread_sigmask(SIG_SETMASK, &kept, nullptr);
}

}  // namespace

void catch_interrupts() {
  Interrupts& state = interrupts();
  state.event = eventfd(0, EFD_CLOEXEC);
  if (state.event < 0) return;
  state.main_thread = pthread_self();
  struct sigaction ours {};
  ours.sa_sigaction = on_interrupt;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  if (sigaction(SIGINT, nullptr, &state.before) != 0) return;
  state.caught = sigaction(SIGINT, &ours, nullptr) == 0;
  pthread_atfork(nullptr, nullptr, [] { interrupts().watched = false; });
}

Interruptible::Interruptible(rondo_communicator* communicator)
    : active_(interrupts().caught && pthread_equal(pthread_self(), interrupts().main_thread)) {
  if (!active_) return;
  if (!interrupts().watched) start_watching();
  const std::lock_guard lock(interrupts().mutex);
  interrupts().waiting = communicator;
}

Interruptible::~Interruptible() {
  if (!active_) return;
  const std::lock_guard lock(interrupts().mutex);
  interrupts().waiting = nullptr;
}

}  // namespace rondo::python
