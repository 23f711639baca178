// What rondo-run does with each signal that it can catch: it passes it to the ranks, or it ends the
// job in order. No signal ends rondo-run itself while ranks are left.
#pragma once

#include <signal.h>

#include <optional>

#include "comm/launch/job_clock.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::run {

enum class SignalUse {
  kChild,    // a child has ended or stopped
  kForward,  // the ranks get it: SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT
  kPause,    // the ranks get SIGTSTP, and then rondo-run stops itself: SIGTSTP, SIGTTIN, SIGTTOU
  kEnd       // every other: the ranks get end_signal(), and SIGKILL if they do not end in time
};
SignalUse use_of(int signal);

/// What tells ranks that the job ends: SIGINT, SIGTERM, SIGHUP and SIGQUIT as they are, SIGTERM for
/// any other, whose default action a program seldom changes.
int end_signal(int signal);
/// Logs that the ranks get `signal`, if that concerns the user: not a window's new size.
void log_passing_on(int signal);
/// Whether a signal of use kEnd is the first one once more, which came `since_first` ago, and not a
/// request to end at once.
bool is_echo(int signal, JobClock::duration since_first);

/// All of the above reach the job through watch_signals(). Orphans of ranks become this process's
/// children.
void prepare_process();
/// Those signals; a process that becomes another program unblocks them. A signal of use kPause or
/// kEnd that was ignored when rondo-run started stays ignored (nohup). SIGINT, SIGQUIT and SIGTERM
/// do not: a shell without job control has what runs in the background ignore them.
sigset_t handled_signals();
/// A descriptor for next_signal(). On failure it logs the reason and returns an invalid one.
transport::UniqueFd watch_signals();

struct CaughtSignal {
  int number = 0;
  bool from_terminal = false;  // Ctrl-Z and the like: the kernel has sent it
};
/// The next pending signal, or nullopt.
std::optional<CaughtSignal> next_signal(const transport::UniqueFd& signals);

/// Stops this process as `cause`, of use kPause, would, until SIGCONT comes, which next_signal()
/// returns next. False: it has not stopped, because it is a container's first process or no shell
/// could continue it; no SIGCONT comes then.
bool stop_until_continued(const CaughtSignal& cause);

}  // namespace rondo::run
