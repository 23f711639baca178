// The supervision of one attempt: one thread, one poll loop.
#include "comm/launch/local_job.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "comm/bootstrap/launchers.hpp"
#include "comm/launch/output_lines.hpp"
#include "comm/launch/repeated_lines.hpp"
#include "comm/status/socket.hpp"
#include "comm/topology/binding.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::run {
namespace {

using transport::UniqueFd;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kGrace{5};
// After Ctrl-C ranks may end what they do; who does not want to wait presses it again.
constexpr std::chrono::seconds kInterruptGrace{60};
// From the first failed rank to the signal for the others: they notice by themselves, and one of
// them may be about to say why.
constexpr std::chrono::milliseconds kMoment{500};
constexpr int kTimeoutExit = 124;                             // as timeout(1)
constexpr int kNotFoundExit = 127, kNotExecutableExit = 126;  // as the shell
constexpr int kLauncherExit = 125;  // as timeout(1): the launcher itself failed

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

/// A new directory with mode 0700 in which the ranks meet.
class MeetingPlace {
 public:
  MeetingPlace() {
    const char* base = std::getenv("XDG_RUNTIME_DIR");
    path_ = std::string(base != nullptr && access(base, W_OK) == 0 ? base : "/tmp") +
            "/rondo-run-" + std::to_string(getpid()) + "-XXXXXX";  // rondo-status looks for it
    if (mkdtemp(path_.data()) == nullptr) {
      spdlog::error("cannot create a directory {}: {}", path_, std::strerror(errno));
      path_.clear();
    }
  }
  ~MeetingPlace() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A TCP port of 127.0.0.1 that nobody used a moment ago; rondo itself does not need it, other
/// libraries may.
int free_port() {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), any, size) != 0 || getsockname(fd.get(), any, &size) != 0) return 29500;
  return ntohs(address.sin_port);
}

std::string random_hex() {
  std::array<unsigned char, 32> bytes;
  std::array<char, 65> text;
  randombytes_buf(bytes.data(), bytes.size());
  return sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
}

class LocalJob {
 public:
  explicit LocalJob(const JobOptions& options) : options_(options) {
    const sigset_t set = handled_signals();
    signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  JobResult run() {
    if (place_.path().empty() || !signals_.valid()) return {.exit_code = kLauncherExit};
    start_status_server();
    start_all();
    while (running_ > 0) turn();
    leave_nothing();
    drain_outputs();
    if (stdout_.error() != 0) {
      spdlog::error("cannot write to stdout: {}", std::strerror(stdout_.error()));
      if (exit_code_ == 0) exit_code_ = kLauncherExit;
    }
    return {.exit_code = exit_code_, .rank_failed = rank_failed_ && !interrupted_ && !timed_out_};
  }

 private:
  struct OutputStream {
    UniqueFd fd;
    LineCutter lines;
    Sink* sink;
    int rank;
  };
  struct Rank {
    pid_t pid = -1;
    bool running = false;
  };

  // ---- starting

  void start_all() {
    set_common_environment();
    if (options_.bind) shares_ = topology::share_cpus(options_.ranks);
    for (int rank = 0; rank < options_.ranks && !stopping_; ++rank) start(rank);
  }

  /// Without it the job runs all the same.
  void start_status_server() {
    const status::Job job{.pid = getpid(),
                          .ranks = options_.ranks,
                          .started_s = std::time(nullptr),
                          .command = fmt::format("{}", fmt::join(options_.command, " "))};
    auto server = status::StatusServer::open(place_.path(), job);
    if (server.ok()) {
      server_.emplace(std::move(*server));
      setenv(status::kSocketVariable, server_->path().c_str(), 1);
    } else {
      unsetenv(status::kSocketVariable);
      spdlog::warn("rondo-status will not find this job: {}", server.status().message());
    }
  }

  void set_common_environment() {
    for (const char* outer : comm::rank_variables()) unsetenv(outer);
    const std::string ranks = std::to_string(options_.ranks);
    setenv("WORLD_SIZE", ranks.c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", ranks.c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
    setenv("RONDO_RENDEZVOUS", place_.path().c_str(), 1);
    setenv("RONDO_SECRET", random_hex().c_str(), 1);
    setenv("RONDO_RESTART_COUNT", std::to_string(options_.restart_count).c_str(), 1);
  }

  void start(int rank) {
    int out[2], err[2], failure[2];
    if (pipe2(out, O_CLOEXEC) != 0) return cannot_start(rank, "pipe", errno, kLauncherExit);
    UniqueFd out_read(out[0]), out_write(out[1]);
    if (pipe2(err, O_CLOEXEC) != 0) return cannot_start(rank, "pipe", errno, kLauncherExit);
    UniqueFd err_read(err[0]), err_write(err[1]);
    if (pipe2(failure, O_CLOEXEC) != 0) return cannot_start(rank, "pipe", errno, kLauncherExit);
    UniqueFd failure_read(failure[0]), failure_write(failure[1]);

    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    name_terminals(out_read.get(), err_read.get());
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid < 0) return cannot_start(rank, "fork", errno, kLauncherExit);
    if (pid == 0) {
      // What cannot be bound runs all the same.
      if (!shares_.empty()) {
        (void)kernels::bind_to_cpus(shares_[static_cast<size_t>(rank)]);
      }
      become_rank(launcher, out_write.get(), err_write.get(), failure_write.get());
    }

    setpgid(pid, pid);  // here and in the child: whoever is first
    ranks_.push_back({.pid = pid, .running = true});
    ++running_;
    pass_on(rank, std::move(out_read), std::move(err_read));

    // The child's end closes by itself when exec succeeds.
    failure_write.reset();
    int error = 0;
    ssize_t got = 0;
    do {
      got = read(failure_read.get(), &error, sizeof error);
    } while (got < 0 && errno == EINTR);
    if (got == sizeof error) {
      const bool missing = error == ENOENT || error == ENOTDIR;
      cannot_start(rank, options_.command[0], error, missing ? kNotFoundExit : kNotExecutableExit);
    }
  }

  std::string prefix_of(int rank) const {
    return options_.prefix_lines ? fmt::format("[{}] ", rank) : "";
  }

  void pass_on(int rank, UniqueFd out, UniqueFd err) {
    const auto print_out = [this, rank](std::string_view line) {
      stdout_.push(prefix_of(rank) + std::string(line));
    };
    const auto print_err = [this, rank](std::string_view line) {
      errors_.add(rank, line, Clock::now());
    };
    const auto terminal = [](int fd) { return isatty(fd) == 1; };
    streams_.push_back(
        {std::move(out), LineCutter(terminal(STDOUT_FILENO), print_out), &stdout_, rank});
    streams_.push_back(
        {std::move(err), LineCutter(terminal(STDERR_FILENO), print_err), &stderr_, rank});
  }

  std::vector<std::string> prefixes() const {
    std::vector<std::string> all;
    for (int rank = 0; rank < options_.ranks; ++rank) all.push_back(prefix_of(rank));
    return all;
  }

  /// For rondo::stdout_is_terminal() and its twin: which pipes lead to a terminal.
  static void name_terminals(int out_pipe, int err_pipe) {
    std::string names;
    const auto add = [&names](int fd, int pipe) {
      struct stat facts {};
      if (isatty(fd) != 1 || fstat(pipe, &facts) != 0) return;
      names += (names.empty() ? "" : ",") + std::to_string(facts.st_ino);
    };
    add(STDOUT_FILENO, out_pipe);
    add(STDERR_FILENO, err_pipe);
    if (names.empty()) {
      unsetenv("RONDO_TERMINAL");
    } else {
      setenv("RONDO_TERMINAL", names.c_str(), 1);
    }
  }

  [[noreturn]] void become_rank(pid_t launcher, int out, int err, int failure) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(kLauncherExit);
    const int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(none, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    const sigset_t set = handled_signals();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    signal(SIGPIPE, SIG_DFL);
    std::vector<char*> arguments;
    for (const std::string& argument : options_.command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    const int error = errno;
    (void)!write(failure, &error, sizeof error);
    _exit(kNotFoundExit);
  }

  void cannot_start(int rank, const std::string& what, int error, int exit_code) {
    spdlog::error("cannot start rank {}: {}: {}", rank, what, std::strerror(error));
    fail(exit_code);
  }

  // ---- watching

  void turn() {
    std::vector<pollfd> watched{{signals_.get(), POLLIN, 0}};
    watch(watched);
    const int ready = poll(watched.data(), watched.size(), wait_ms());
    if (ready < 0 && errno != EINTR) {
      spdlog::error("poll: {}; stopping all ranks", std::strerror(errno));
      exit_code_ = kLauncherExit;
      return leave_nothing();
    }
    if (ready > 0) {
      serve(watched);
      read_signals();
    }
    reap();
    check_time();
  }

  /// The server, sinks and streams, in this order after the signals.
  void watch(std::vector<pollfd>& watched) {
    watched.push_back({server_ ? server_->fd() : -1, POLLIN, 0});
    for (Sink* sink : {&stdout_, &stderr_}) {
      watched.push_back({sink->has_work() ? sink->fd() : -1, POLLOUT, 0});
    }
    for (const OutputStream& stream : streams_) {
      watched.push_back({stream.sink->is_full() ? -1 : stream.fd.get(), POLLIN, 0});
    }
  }

  void serve(const std::vector<pollfd>& watched) {
    if (watched[1].revents != 0) server_->serve();
    if (watched[2].revents != 0) stdout_.write_some();
    if (watched[3].revents != 0) stderr_.write_some();
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (watched[i + 4].revents != 0) read_stream(streams_[i]);
    }
  }

  void read_stream(OutputStream& stream) {
    std::array<char, 65536> bytes;
    const ssize_t got = read(stream.fd.get(), bytes.data(), bytes.size());
    if (got > 0) return stream.lines.feed({bytes.data(), static_cast<size_t>(got)});
    if (got < 0 && errno == EINTR) return;
    stream.lines.finish();
    if (stream.sink == &stderr_) errors_.end(stream.rank, Clock::now());
    stream.fd.reset();
  }

  void read_signals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) child_ended_ = true;
      if (signal == SIGCHLD) continue;
      if (signal == SIGUSR1) {
        if (server_) {
          server_->serve();  // a communicator may have been announced this very moment
          stderr_.push(server_->flight_records());
        }
        continue;
      }
      spdlog::warn("passing {} on to all ranks", strsignal(signal));
      const bool again = interrupted_;
      interrupted_ = true;
      if (!stopping_) exit_code_ = 128 + signal;
      stop(again ? SIGKILL : signal);
    }
  }

  /// Notices which ranks have ended, and leaves them zombies until leave_nothing(): as long as a
  /// rank's number is taken, signal_all() reaches no other process's group. Orphans are reaped.
  void reap() {
    if (!std::exchange(child_ended_, false)) return;
    reap_orphans();
    std::vector<std::pair<int, siginfo_t>> ends;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      siginfo_t end{};
      if (!ranks_[rank].running || waitid(P_PID, static_cast<id_t>(ranks_[rank].pid), &end,
                                          WEXITED | WNOHANG | WNOWAIT) != 0) {
        continue;
      }
      if (end.si_pid == 0) continue;
      ranks_[rank].running = false;
      --running_;
      ends.emplace_back(static_cast<int>(rank), end);
    }
    // They come in no order of time. A rank that was killed did not end because of another; one
    // that exits may have noticed that death.
    std::stable_partition(ends.begin(), ends.end(),
                          [](const auto& end) { return end.second.si_code != CLD_EXITED; });
    for (const auto& [rank, end] : ends) report(rank, end);
  }

  /// Of the children, which include the orphans of ranks, those that are no rank.
  void reap_orphans() {
    for (const pid_t child : children()) {
      const bool is_rank = std::any_of(ranks_.begin(), ranks_.end(),
                                       [&](const Rank& rank) { return rank.pid == child; });
      if (!is_rank) waitpid(child, nullptr, WNOHANG);
    }
  }

  static std::vector<pid_t> children() {
    std::ifstream list(fmt::format("/proc/{0}/task/{0}/children", getpid()));
    return {std::istream_iterator<pid_t>(list), {}};
  }

  void report(int rank, const siginfo_t& end) {
    const int status = end.si_status;  // an exit code, or the signal that killed it
    if (stopping_ || (end.si_code == CLD_EXITED && status == 0)) return;
    if (end.si_code == CLD_EXITED) {
      spdlog::error("rank {} exited with code {}; stopping the others", rank, status);
      return rank_failed(status);
    }
    spdlog::error("rank {} was killed by signal {} ({}); stopping the others", rank, status,
                  strsignal(status));
    rank_failed(128 + status);
  }

  void check_time() {
    const auto now = Clock::now();
    errors_.turn(now);
    if (options_.deadline && now >= *options_.deadline && !timed_out_) {
      timed_out_ = true;
      if (!stopping_) {
        spdlog::error("the time limit is over; stopping all ranks");
        fail(kTimeoutExit);
      }
    }
    if (stop_at_ && now >= *stop_at_) stop(SIGTERM);
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      signal_all(SIGKILL);
    }
  }

  int wait_ms() const {
    auto until = Clock::now() + std::chrono::seconds(60);
    if (options_.deadline && !timed_out_) until = std::min(until, *options_.deadline);
    if (stop_at_) until = std::min(until, *stop_at_);
    if (kill_at_) until = std::min(until, *kill_at_);
    if (const auto held = errors_.next()) until = std::min(until, *held);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    return static_cast<int>(std::max<int64_t>(left.count(), 0));
  }

  // ---- stopping

  void rank_failed(int exit_code) {
    rank_failed_ = stopping_ = true;
    exit_code_ = exit_code;
    stop_at_ = Clock::now() + kMoment;
  }

  void fail(int exit_code) {
    exit_code_ = exit_code;
    stop(SIGTERM);
  }

  void stop(int signal) {
    stopping_ = true;
    stop_at_.reset();
    if (!kill_at_) kill_at_ = Clock::now() + (signal == SIGINT ? kInterruptGrace : kGrace);
    signal_all(signal);
    signal_all(SIGCONT);  // a stopped rank would not act on it
  }

  /// Also the groups of ranks that have ended: their children may live on.
  void signal_all(int signal) {
    for (const Rank& rank : ranks_) kill(-rank.pid, signal);
  }

  /// Kills what ranks have left in their groups, and what has left its group: as this process
  /// adopts orphans, those are its children in the end. Reaps all; no rank is signalled after this.
  void leave_nothing() {
    signal_all(SIGKILL);
    ranks_.clear();
    // A process in an uninterruptible wait outlives even SIGKILL for a while.
    const auto until = Clock::now() + kGrace;
    while (true) {
      const pid_t pid = waitpid(-1, nullptr, WNOHANG);
      if (pid < 0 && errno == ECHILD) break;
      if (pid != 0) continue;
      if (Clock::now() >= until) {
        spdlog::warn("some processes of this job do not end: pid {}", fmt::join(children(), ", "));
        break;
      }
      for (const pid_t child : children()) kill(child, SIGKILL);
      pollfd signals{signals_.get(), POLLIN, 0};
      poll(&signals, 1, 20);
      read_signals();
    }
    running_ = 0;
  }

  /// All writers have ended: what is in the pipes is all there will be. A reader that takes nothing
  /// for kGrace gets no more.
  void drain_outputs() {
    const auto has_open = [&] {
      return std::any_of(streams_.begin(), streams_.end(),
                         [](const OutputStream& stream) { return stream.fd.valid(); });
    };
    if (!has_open()) errors_.finish();
    while (has_open() || stdout_.has_work() || stderr_.has_work()) {
      std::vector<pollfd> watched{{-1, 0, 0}};
      watch(watched);
      const int ready =
          poll(watched.data(), watched.size(), std::chrono::milliseconds(kGrace).count());
      if (ready == 0 && errors_.next()) {
        errors_.finish();  // the writers that remain are silent
        continue;
      }
      if (ready == 0 || (ready < 0 && errno != EINTR)) return;
      if (ready > 0) serve(watched);
      if (!has_open()) errors_.finish();
    }
  }

  const JobOptions& options_;
  MeetingPlace place_;
  std::optional<status::StatusServer> server_;
  UniqueFd signals_;
  Sink stdout_{STDOUT_FILENO}, stderr_{STDERR_FILENO};
  RepeatedLines errors_{prefixes(), [this](std::string_view line) { stderr_.push(line); }};
  std::vector<OutputStream> streams_;
  std::vector<Rank> ranks_;
  std::vector<kernels::CpuMask> shares_;  // by rank; empty: nobody is bound
  int running_ = 0;
  int exit_code_ = 0;
  bool child_ended_ = false;  // SIGCHLD has come since the last reap()
  bool stopping_ = false, rank_failed_ = false, interrupted_ = false, timed_out_ = false;
  std::optional<Clock::time_point> stop_at_, kill_at_;
};

}  // namespace

JobResult run_job(const JobOptions& options) { return LocalJob(options).run(); }

void prepare_process() {
  const sigset_t set = handled_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // where a parent ignores it, ends of children leave no trace
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

}  // namespace rondo::run
