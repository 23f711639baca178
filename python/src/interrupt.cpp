// See interrupt.hpp.
#include "python/src/interrupt.hpp"

#include <nanobind/nanobind.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <thread>

namespace rondo::python {
namespace {

namespace nb = nanobind;

struct Interrupts {
  std::atomic<int> event = -1;              // wakes the watching thread
  std::atomic<bool> has_signalled = false;  // since the call that waits has begun
  pthread_t main_thread{};
  struct sigaction before {};
  bool watched = false;  // this process has the thread; a forked child has not
  std::mutex mutex;      // held while what the main thread waits in changes, or is aborted
  std::atomic<rondo_communicator*> waiting = nullptr;
};

Interrupts& interrupts() {
  static auto* const state = new Interrupts;  // a handler may run at any time until the end
  return *state;
}

void on_interrupt(int signal, siginfo_t* info, void* context) {
  const int kept = errno;
  const uint64_t one = 1;
  if (interrupts().waiting.load() != nullptr) {
    interrupts().has_signalled = true;
    [[maybe_unused]] const auto written = write(interrupts().event, &one, sizeof one);
  }
  const struct sigaction& before = interrupts().before;
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
  errno = kept;
}

void watch() {
  for (;;) {
    pollfd event{.fd = interrupts().event, .events = POLLIN, .revents = 0};
    if (poll(&event, 1, -1) < 0 && errno != EINTR) return;
    const std::lock_guard lock(interrupts().mutex);
    uint64_t signals = 0;
    [[maybe_unused]] const auto got = read(interrupts().event, &signals, sizeof signals);
    rondo_communicator* const waiting = interrupts().waiting;
    if (interrupts().has_signalled.exchange(false) && waiting != nullptr) {
      rondo_abort(waiting, "interrupted by Ctrl-C (SIGINT)");
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

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_interrupt;
}

/// Whether SIGINT comes to us: others restore Python's handler, as asyncio.run() does at its end.
bool is_caught() {
  struct sigaction now {};
  if (interrupts().event < 0 || sigaction(SIGINT, nullptr, &now) != 0) return false;
  if (is_ours(now)) return true;
  const nb::module_ signals = nb::module_::import_("signal");
  if (!signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"))) return false;
  interrupts().before = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_interrupt;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return sigaction(SIGINT, &ours, nullptr) == 0;
}

int new_event() { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

/// A forked child has no watching thread, and must not share its parent's event.
void begin_child() {
  interrupts().watched = false;
  interrupts().event = new_event();
  interrupts().waiting = nullptr;
}

}  // namespace

void catch_interrupts() {
  interrupts().event = new_event();
  interrupts().main_thread = pthread_self();
  pthread_atfork(nullptr, nullptr, begin_child);
}

Interruptible::Interruptible(rondo_communicator* communicator)
    : active_(communicator != nullptr && interrupts().event >= 0 &&
              pthread_equal(pthread_self(), interrupts().main_thread) && is_caught()) {
  if (!active_) return;
  if (!interrupts().watched) start_watching();
  {
    const std::lock_guard lock(interrupts().mutex);
    interrupts().has_signalled = false;  // a signal during an earlier call is not for this one
    interrupts().waiting = communicator;
  }
  if (PyErr_CheckSignals() == 0) return;
  const std::lock_guard lock(interrupts().mutex);
  interrupts().waiting = nullptr;
  throw nb::python_error();
}

Interruptible::~Interruptible() {
  if (!active_) return;
  const std::lock_guard lock(interrupts().mutex);
  interrupts().waiting = nullptr;
}

}  // namespace rondo::python
