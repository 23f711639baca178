// What a job's ranks print and how they end, on its way to whoever has started the job: this
// process's own stdout and stderr, or the rondo-run of another host (serve.hpp).
#pragma once

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launch/job_clock.hpp"
#include "comm/launch/output_lines.hpp"
#include "comm/launch/repeated_lines.hpp"

namespace rondo::run {

inline constexpr int kTimeoutExit = 124;                             // as timeout(1)
inline constexpr int kLauncherExit = 125;                            // the launcher itself failed
inline constexpr int kNotFoundExit = 127, kNotExecutableExit = 126;  // as the shell
inline constexpr int kPipeExit = 128 + SIGPIPE;                      // nobody reads any more

/// From SIGTERM, because a rank has failed, to SIGKILL.
inline constexpr std::chrono::seconds kGrace{5};
/// After Ctrl-C ranks may end what they do; who does not want to wait presses it again.
inline constexpr std::chrono::seconds kInterruptGrace{60};
/// After another signal that is passed on, as a scheduler's SIGTERM: it kills after 30 s itself, and
/// ranks' children would be left.
inline constexpr std::chrono::seconds kPassedOnGrace{25};
/// A SIGTERM or SIGHUP so soon after another signal is the same one: timeout(1) sends SIGTERM to its
/// child and to all of its group, and a shell that has lost its terminal passes SIGHUP on.
inline constexpr std::chrono::seconds kSameSignal{1};
/// From the first failed rank to the signal for the others: they notice by themselves, and one of
/// them may be about to say why.
inline constexpr std::chrono::milliseconds kMoment{500};

/// The end of a rank that was no success.
struct RankFailure {
  int rank = 0;
  bool killed = false;    // by a signal
  int status = 0;         // the exit code, or the signal
  bool survived = false;  // the others go on without it
  int exit_code() const { return killed ? 128 + status : status; }
};
/// Whether the others of an elastic job may go on after it.
bool is_a_loss(const RankFailure& failure);
/// "rank 2 exited with code 3", "rank 2 was killed by signal 9 (Killed)".
std::string describe(const RankFailure& failure);

/// What the other end wants of the job.
struct Order {
  enum class What {
    kSignal,  // as if the launcher got it
    kStop,    // SIGTERM: the job has failed elsewhere, or nobody reads its output
    kKill     // SIGKILL to all ranks: the other end is gone
  };
  What what;
  int signal = 0;
};

/// One thread, that of the loop which polls its descriptors. Never waits. `fd` is STDOUT_FILENO or
/// STDERR_FILENO, and says to which of its streams the rank wrote.
class Console {
 public:
  using Time = JobClock::time_point;
  virtual ~Console() = default;

  /// A whole line, with its end.
  virtual void print(int rank, int fd, std::string_view line) = 0;
  /// The rank prints nothing more there.
  virtual void close(int rank, int fd) = 0;
  virtual void report(const RankFailure& failure) = 0;
  /// Whether ranks should rest until the reader has caught up.
  virtual bool is_full(int fd) const = 0;

  /// Appends the descriptors to wait for, always as many; serve() gets them back.
  virtual void watch(std::vector<pollfd>& watched) const = 0;
  virtual void serve(std::span<const pollfd> watched) = 0;
  /// When turn() has something to do next.
  virtual std::optional<Time> next() const = 0;
  virtual void turn(Time now) = 0;
  virtual std::optional<Order> next_order() { return std::nullopt; }

  /// All ranks have ended: what is held is printed.
  virtual void finish() = 0;
  /// Whether something remains to be written.
  virtual bool has_work() const = 0;
};

/// Waits until `console` has written everything, or its reader has taken nothing for kGrace.
void flush(Console& console);

/// This process's stdout and stderr; failures of ranks are logged.
class TerminalConsole final : public Console {
 public:
  /// Lines begin with "[rank] " where `prefix` says so.
  TerminalConsole(int ranks, bool prefix);

  void print(int rank, int fd, std::string_view line) override;
  void close(int rank, int fd) override;
  /// To stderr as it is.
  void show(std::string_view text) { stderr_.push(text); }
  void report(const RankFailure& failure) override;
  bool is_full(int fd) const override;
  void watch(std::vector<pollfd>& watched) const override;
  void serve(std::span<const pollfd> watched) override;
  std::optional<Time> next() const override { return errors_.next(); }
  void turn(Time now) override { errors_.turn(now); }
  /// kStop, once: the reader of stdout or of stderr is gone.
  std::optional<Order> next_order() override;
  void finish() override { errors_.finish(); }
  bool has_work() const override { return stdout_.has_work() || stderr_.has_work(); }

  /// What a job that has done well ends with: not 0 where output was lost, which is logged.
  int exit_code() const;

 private:
  bool reader_is_gone() const { return stdout_.error() == EPIPE || stderr_.error() == EPIPE; }

  const std::vector<std::string> prefixes_;  // [rank]
  Sink stdout_{1}, stderr_{2};
  RepeatedLines errors_;
  bool has_ordered_stop_ = false;
};

}  // namespace rondo::run
