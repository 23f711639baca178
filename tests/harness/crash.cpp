// A test program that crashes ends soon. Catch2's handler of the signal allocates for its report:
// after a crash in malloc(), which holds the heap's lock, it waits for ever. So it has ten seconds.
// (Linked with --wrap=sigaction, which Catch2 calls.)
#include <signal.h>
#include <unistd.h>

#include <string_view>

extern "C" int __real_sigaction(int, const struct sigaction*, struct sigaction*);

namespace {

using Handler = void (*)(int);
Handler reports[NSIG];

void crashed(int signal) {
  constexpr std::string_view kSaid =
      "\nThe test program has crashed. If no report follows within 10 s, the crash hinders it: use "
      "a debugger.\n";
  (void)!write(STDERR_FILENO, kSaid.data(), kSaid.size());
  ::signal(SIGALRM, SIG_DFL);
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  alarm(10);
  reports[signal](signal);
}

}  // namespace

extern "C" int __wrap_sigaction(int signal, const struct sigaction* action,
                                struct sigaction* before) {
  const bool is_crash = signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
                        signal == SIGILL || signal == SIGSEGV;
  if (!is_crash || action == nullptr || (action->sa_flags & SA_SIGINFO) != 0 ||
      action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN ||
      action->sa_handler == &crashed) {  // which somebody has saved, and puts back
    return __real_sigaction(signal, action, before);
  }
  reports[signal] = action->sa_handler;
  struct sigaction limited = *action;
  limited.sa_handler = &crashed;
  return __real_sigaction(signal, &limited, before);
}
