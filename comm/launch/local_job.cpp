// The supervision of one attempt: one thread, one poll loop.
#include "comm/launch/local_job.hpp"

#include <arpa/inet.h>
#include <signal.h>
#include <sodium.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
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
#include <fstream>
#include <iterator>
#include <span>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/base/temporary_directory.hpp"
#include "comm/base/wait_until.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/bootstrap/identity/launchers.hpp"
#include "comm/launch/child.hpp"
#include "comm/launch/job_clock.hpp"
#include "comm/launch/output_lines.hpp"
#include "comm/launch/signals.hpp"
#include "comm/status/socket.hpp"
#include "comm/topology/binding.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::run {
namespace {

using transport::UniqueFd;
using Clock = JobClock;

/// Where the ranks meet, and where rondo-status looks for the job.
Result<base::TemporaryDirectory> make_meeting_place() {
  const char* folder = std::getenv("XDG_RUNTIME_DIR");
  return base::TemporaryDirectory::create(
      "rondo-run-" + std::to_string(getpid()) + "-",
      folder != nullptr && access(folder, W_OK) == 0 ? folder : "/tmp");
}

/// A TCP port that nobody used a moment ago; rondo itself does not need it, other libraries may. It is
/// below those that the kernel gives to sockets without one (from 32768 on), of which one could be
/// given away before a rank listens there. Jobs begin to look at different ones.
int free_port() {
  constexpr int kFirst = 10000, kPorts = 10000, kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int port = kFirst + (getpid() + attempt) % kPorts;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      return port;
    }
  }
  return 29500;
}

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
void set(const char* name, int value) { set(name, std::to_string(value)); }

class LocalJob {
 public:
  LocalJob(const JobOptions& options, Console& console) : options_(options), console_(console) {}
  /// However the attempt has ended, by an exception too.
  ~LocalJob() {
    (void)base::guarded([this] { return leave_nothing(), Status(); });
  }
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  JobResult run() {
    if (!place_.ok()) {
      spdlog::error("{}; XDG_RUNTIME_DIR can name another place", place_.status().message());
    }
    if (!place_.ok() || !signals_.valid()) return {.exit_code = kLauncherExit};
    start_status_server();
    start_all();
    while (running_ > 0) turn();
    leave_nothing();
    drain_outputs();
    // Of several hosts another may have a rank that ended well.
    if (lost_ && succeeded_ == 0 && !stopping_ && !options_.part) {
      exit_code_ = lost_->exit_code();
      rank_failed_ = true;
    }
    return {.exit_code = exit_code_,
            .rank_failed = rank_failed_ && !interrupted_ && !timed_out_,
            .succeeded = succeeded_};
  }

 private:
  struct OutputStream {
    UniqueFd fd;
    LineCutter lines;
    int rank;  // of the whole job
    int target;
  };
  struct Rank {
    pid_t pid = -1;
    bool running = false;
  };

  // ---- starting

  void start_all() {
    set_common_environment();
    if (options_.bind) shares_ = topology::share_cpus(options_.ranks);
    ranks_.reserve(static_cast<size_t>(options_.ranks));  // nothing may fail once a rank runs
    for (int rank = 0; rank < options_.ranks && !stopping_; ++rank) start(rank);
  }

  /// Without it the job runs all the same.
  void start_status_server() {
    const status::Job job{.pid = getpid(),
                          .ranks = options_.part ? options_.part->world_size : options_.ranks,
                          .started_s = std::time(nullptr),
                          .command = fmt::format("{}", fmt::join(options_.command, " "))};
    auto server = status::StatusServer::open(place_->path(), job);
    if (server.ok()) {
      server_.emplace(std::move(*server));
      setenv(status::kSocketVariable, server_->path().c_str(), 1);
    } else {
      unsetenv(status::kSocketVariable);
      spdlog::warn("rondo-status will not find this job: {}", server.status().message());
    }
  }

  int first_rank() const { return options_.part ? options_.part->first_rank : 0; }

  void set_common_environment() {
    for (const char* outer : comm::rank_variables()) unsetenv(outer);
    JobPart part = options_.part.value_or(JobPart{.world_size = options_.ranks});
    const bool is_spread = part.hosts > 1;
    if (part.secret.empty()) part.secret = make_secret();
    set("WORLD_SIZE", part.world_size);
    set("LOCAL_WORLD_SIZE", options_.ranks);
    set("GROUP_RANK", part.host);
    set("GROUP_WORLD_SIZE", part.hosts);
    set("MASTER_ADDR", is_spread ? part.master_address : "127.0.0.1");
    set("MASTER_PORT", is_spread ? part.master_port : free_port());
    set("RONDO_RENDEZVOUS",
        is_spread ? comm::kTcpScheme + with_port(part.master_address, part.rendezvous_port)
                  : place_->path());
    set("RONDO_SECRET", part.secret);
    set("RONDO_RESTART_COUNT", options_.restart_count);
  }

  void start(int local_rank) {
    const int rank = first_rank() + local_rank;
    const auto prepare = [&] {
      setpgid(0, 0);
      // What cannot be bound runs all the same.
      if (!shares_.empty()) (void)kernels::bind_to_cpus(shares_[static_cast<size_t>(local_rank)]);
      set("RANK", rank);
      set("LOCAL_RANK", local_rank);
      name_terminals();
    };
    Child child =
        start_child({.words = options_.command, .signal_at_end = SIGKILL, .prepare = prepare});
    if (!child.status.ok()) {
      spdlog::error("cannot start rank {}: {}", rank, child.status.message());
      return fail(child.exit_code);
    }
    ranks_.push_back({.pid = child.pid, .running = true});
    ++running_;
    pass_on(rank, std::move(child.out), std::move(child.err));
  }

  void pass_on(int rank, UniqueFd out, UniqueFd err) {
    const auto add = [&](UniqueFd fd, int target, bool is_terminal) {
      LineCutter lines({.is_terminal = is_terminal}, [this, rank, target](std::string_view line) {
        console_.print(rank, target, line);
      });
      streams_.push_back({std::move(fd), std::move(lines), rank, target});
    };
    add(std::move(out), STDOUT_FILENO, options_.stdout_is_terminal);
    add(std::move(err), STDERR_FILENO, options_.stderr_is_terminal);
  }

  /// For rondo::stdout_is_terminal() and its twin: which of this process's pipes lead to a terminal.
  void name_terminals() const {
    std::string names;
    const auto add = [&names](bool is_terminal, int pipe) {
      struct stat facts {};
      if (!is_terminal || fstat(pipe, &facts) != 0) return;
      names += (names.empty() ? "" : ",") + std::to_string(facts.st_ino);
    };
    add(options_.stdout_is_terminal, STDOUT_FILENO);
    add(options_.stderr_is_terminal, STDERR_FILENO);
    if (names.empty()) {
      unsetenv("RONDO_TERMINAL");
    } else {
      set("RONDO_TERMINAL", names);
    }
  }

  // ---- watching

  void turn() {
    std::vector<pollfd> watched = watch();
    const int ready = poll_until(watched, earliest({timed_out_ ? std::nullopt : options_.deadline,
                                                    stop_at_, kill_at_, console_.next()}));
    if (ready < 0 && errno != EINTR) {
      spdlog::error("poll: {}; stopping all ranks", std::strerror(errno));
      exit_code_ = kLauncherExit;
      return leave_nothing();
    }
    if (ready > 0) {
      serve(watched);
      read_signals();
    }
    while (const auto order = console_.next_order()) obey(*order);
    reap();
    check_time();
  }

  /// Signals and server, the streams of ranks, then the console's.
  std::vector<pollfd> watch() const {
    std::vector<pollfd> watched{{signals_.get(), POLLIN, 0},
                                {server_ ? server_->fd() : -1, POLLIN, 0}};
    for (const OutputStream& stream : streams_) {
      watched.push_back({console_.is_full(stream.target) ? -1 : stream.fd.get(), POLLIN, 0});
    }
    console_.watch(watched);
    return watched;
  }

  void serve(std::span<const pollfd> watched) {
    if (watched[1].revents != 0) server_->serve();
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (watched[i + 2].revents != 0) read_stream(streams_[i]);
    }
    console_.serve(watched.subspan(streams_.size() + 2));
  }

  void read_stream(OutputStream& stream) {
    const auto feed = [&stream](std::string_view bytes) { stream.lines.feed(bytes); };
    if (read_some(stream.fd.get(), feed)) return;
    stream.lines.finish();
    console_.close(stream.rank, stream.target);
    stream.fd.reset();
  }

  void read_signals() {
    while (const auto caught = next_signal(signals_)) act_on(*caught);
  }

  void act_on(const CaughtSignal& caught) {
    const int signal = caught.number;
    switch (use_of(signal)) {
      case SignalUse::kChild:
        child_ended_ = true;
        return;
      case SignalUse::kForward:
        if (!options_.part) log_passing_on(signal);
        return signal_all(signal);
      case SignalUse::kPause:
        return pause(caught);
      case SignalUse::kEnd:
        return end_by(signal);
    }
  }

  /// A host's ranks stop alone: its rondo-run still hears of the end of the one that the user has
  /// started.
  void pause(const CaughtSignal& cause) {
    signal_all(SIGTSTP);
    if (!options_.part && !stop_until_continued(cause)) signal_all(SIGCONT);
  }

  void end_by(int signal) {
    const bool again = interrupted_.has_value();
    if (again && is_echo(signal, Clock::now() - *interrupted_)) return;
    if (!options_.part) log_passing_on(signal);
    interrupted_ = Clock::now();
    if (!stopping_) exit_code_ = 128 + signal;
    stop(again ? SIGKILL : end_signal(signal), signal == SIGINT ? kInterruptGrace : kPassedOnGrace);
  }

  void obey(const Order& order) {
    if (order.what == Order::What::kSignal) return act_on({.number = order.signal});
    if (order.what == Order::What::kKill) {
      exit_code_ = kLauncherExit;
      return leave_nothing();
    }
    if (!kill_at_) stop(SIGTERM);
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
    // si_status is an exit code, or the signal that killed the rank.
    RankFailure failure{
        .rank = first_rank() + rank, .killed = end.si_code != CLD_EXITED, .status = end.si_status};
    if (failure.exit_code() == 0) ++succeeded_;
    if (stopping_ || failure.exit_code() == 0) return;
    failure.survived = options_.elastic && is_a_loss(failure);
    console_.report(failure);
    if (failure.survived) {
      if (!lost_) lost_ = failure;
      return;
    }
    rank_failed_ = stopping_ = true;
    exit_code_ = failure.exit_code();
    stop_at_ = Clock::now() + kMoment;
  }

  void check_time() {
    const auto now = Clock::now();
    console_.turn(now);
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

  // ---- stopping

  void fail(int exit_code) {
    exit_code_ = exit_code;
    stop(SIGTERM);
  }

  void stop(int signal, std::chrono::seconds grace = kGrace) {
    stopping_ = true;
    stop_at_.reset();
    if (!kill_at_) kill_at_ = Clock::now() + grace;
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
    if (has_left_nothing_) return;
    signal_all(SIGKILL);
    ranks_.clear();
    // A process in an uninterruptible wait outlives even SIGKILL for a while.
    const auto until = Clock::now() + kGrace;
    bool all_ended = false;
    base::wait_until([&] {
      read_signals();
      all_ended = reap_children();
      return all_ended || Clock::now() >= until;
    });
    if (!all_ended) {
      spdlog::warn("some processes of this job do not end: pid {}", fmt::join(children(), ", "));
    }
    running_ = 0;
    has_left_nothing_ = true;
  }

  /// Reaps what has ended and kills the others. True: there are none.
  static bool reap_children() {
    pid_t pid = 0;
    while ((pid = waitpid(-1, nullptr, WNOHANG)) > 0) continue;
    if (pid < 0 && errno == ECHILD) return true;
    for (const pid_t child : children()) kill(child, SIGKILL);
    return false;
  }

  /// All writers have ended: what is in the pipes is all there will be. A reader that takes nothing
  /// for kGrace gets no more.
  void drain_outputs() {
    const auto has_open = [&] {
      return std::any_of(streams_.begin(), streams_.end(),
                         [](const OutputStream& stream) { return stream.fd.valid(); });
    };
    while (has_open()) {
      std::vector<pollfd> watched = watch();
      watched[0].fd = -1;
      const int ready = poll_until(watched, Clock::now() + kGrace);
      if (ready == 0 || (ready < 0 && errno != EINTR)) break;  // the writers that remain are silent
      if (ready > 0) serve(watched);
      console_.turn(Clock::now());
    }
    console_.finish();
    flush(console_);
  }

  const JobOptions& options_;
  Console& console_;
  const Result<base::TemporaryDirectory> place_ = make_meeting_place();
  std::optional<status::StatusServer> server_;
  UniqueFd signals_ = watch_signals();
  std::vector<OutputStream> streams_;
  std::vector<Rank> ranks_;
  std::vector<kernels::CpuMask> shares_;  // by rank; empty: nobody is bound
  int running_ = 0, succeeded_ = 0;
  int exit_code_ = 0;
  std::optional<RankFailure> lost_;  // the first that the others survived
  bool child_ended_ = false;         // SIGCHLD has come since the last reap()
  bool stopping_ = false, rank_failed_ = false, timed_out_ = false;
  bool has_left_nothing_ = false;
  std::optional<Clock::time_point> interrupted_;
  std::optional<Clock::time_point> stop_at_, kill_at_;
};

}  // namespace

JobResult run_job(const JobOptions& options, Console& console) {
  return LocalJob(options, console).run();
}

std::string make_secret() {
  std::array<unsigned char, 32> bytes;
  std::array<char, 65> text;
  randombytes_buf(bytes.data(), bytes.size());
  return sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
}

std::string with_port(const std::string& address, int port) {
  return comm::bracketed(address) + ":" + std::to_string(port);
}

}  // namespace rondo::run
