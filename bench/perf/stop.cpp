// The signals are read from a descriptor: no code runs inside a signal handler.
#include "bench/perf/stop.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace rondo::bench {
namespace {

// rondo-run stops the ranks because one of them has failed. That failure is the better reason to
// report, and the library finds it within milliseconds.
constexpr std::chrono::milliseconds kForTheReason{200};
// timeout(1), and schedulers, send SIGTERM to the launcher, which passes it on, and to its ranks.
constexpr std::chrono::seconds kSameSignal{1};

using Clock = std::chrono::steady_clock;

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

[[noreturn]] void end_by(int signal) {
  const sigset_t one = set_of({signal});
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
  std::_Exit(128 + signal);
}

}  // namespace

StopOnSignal::StopOnSignal() : end_(eventfd(0, EFD_CLOEXEC)) {
  const sigset_t set = set_of({SIGTERM, SIGINT});
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  thread_ = std::jthread([this] { listen(); });
}

StopOnSignal::~StopOnSignal() {
  eventfd_write(end_, 1);
  thread_.join();
  close(end_);
  close(signals_);
}

void StopOnSignal::on_signal(std::function<void(const std::string&)> abort) {
  const std::lock_guard lock(mutex_);
  abort_ = std::move(abort);
}

void StopOnSignal::listen() {
  bool again = false;
  Clock::time_point first;
  while (true) {
    pollfd watched[2] = {{signals_, POLLIN, 0}, {end_, POLLIN, 0}};
    if (poll(watched, 2, -1) < 0 && errno != EINTR) return;
    if (watched[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) != sizeof(info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    if (again && signal == SIGTERM && Clock::now() - first < kSameSignal) continue;
    if (!again) first = Clock::now();
    if (!again) std::this_thread::sleep_for(kForTheReason);
    const std::lock_guard lock(mutex_);
    if (again || !abort_) end_by(signal);
    stopped_by_ = signal;
    abort_(std::string("stopped by ") + strsignal(signal));
    again = true;
  }
}

}  // namespace rondo::bench
