// See signals.hpp.
#include "comm/launch/signals.hpp"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/launch/console.hpp"

namespace rondo::run {
namespace {

sigset_t set_of(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool stays_ignored(int signal) {
  const SignalUse use = use_of(signal);
  if (use == SignalUse::kChild || use == SignalUse::kForward) return false;
  return signal != SIGINT && signal != SIGQUIT && signal != SIGTERM && is_ignored(signal);
}

bool is_pending(int signal) {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, signal) == 1;
}

}  // namespace

SignalUse use_of(int signal) {
  switch (signal) {
    case SIGCHLD:
      return SignalUse::kChild;
    case SIGUSR1:
    case SIGUSR2:
    case SIGWINCH:
    case SIGCONT:
      return SignalUse::kForward;
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
      return SignalUse::kPause;
    default:
      return SignalUse::kEnd;
  }
}

int end_signal(int signal) {
  const bool as_it_is =
      signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  return as_it_is ? signal : SIGTERM;
}

void log_passing_on(int signal) {
  if (use_of(signal) == SignalUse::kEnd && end_signal(signal) != signal) {
    spdlog::warn("{}: passing SIGTERM on to all ranks", strsignal(signal));
  } else if (signal != SIGWINCH && signal != SIGCONT) {
    spdlog::warn("passing {} on to all ranks", strsignal(signal));
  }
}

bool is_echo(int signal, JobClock::duration since_first) {
  if (signal == SIGXCPU) return true;  // comes again after each second of CPU time
  return signal != SIGINT && signal != SIGQUIT && since_first < kSameSignal;
}

sigset_t handled_signals() {
  sigset_t set;
  sigfillset(&set);  // the C library keeps two for itself
  // write() reports a closed pipe. SIGURG is ignored by default and stays so.
  for (const int ignored : {SIGKILL, SIGSTOP, SIGPIPE, SIGURG}) sigdelset(&set, ignored);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (sigismember(&set, signal) == 1 && stays_ignored(signal)) sigdelset(&set, signal);
  }
  return set;
}

void prepare_process() {
  const sigset_t set = handled_signals();
  // A fault of this process's own ends it all the same, blocked or not.
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // where a parent ignores it, ends of children leave no trace
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

transport::UniqueFd watch_signals() {
  const sigset_t set = handled_signals();
  transport::UniqueFd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) spdlog::error("cannot watch signals: signalfd: {}", std::strerror(errno));
  return signals;
}

std::optional<CaughtSignal> next_signal(const transport::UniqueFd& signals) {
  signalfd_siginfo info;
  if (read(signals.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return CaughtSignal{.number = static_cast<int>(info.ssi_signo),
                      .from_terminal = info.ssi_code == SI_KERNEL};
}

bool stop_until_continued(const CaughtSignal& cause) {
  if (is_pending(SIGCONT)) return true;  // continued already; stopping would discard it
  const auto began = std::chrono::steady_clock::now();
  if (cause.from_terminal) {
    // By its default action, which the kernel leaves out where no shell could continue this process.
    const sigset_t one = set_of(SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
    sigprocmask(SIG_BLOCK, &one, nullptr);
  } else {
    raise(SIGSTOP);
  }
  JobClock::leave_out(std::chrono::steady_clock::now() - began);
  return is_pending(SIGCONT);
}

}  // namespace rondo::run
