// The supervision of one attempt on several hosts: one thread, one poll loop.
#include "comm/launch/hosts_job.hpp"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/base/printable.hpp"
#include "comm/base/wait_until.hpp"
#include "comm/launch/signals.hpp"
#include "rondo/rondo.h"
#include "transport/memory/unique_fd.hpp"

namespace rondo::run {
namespace {

using transport::UniqueFd;
using Clock = JobClock;

// Reports of other hosts that may be under way: a rank that was killed did not end because of
// another, but one that exits may have noticed that death.
constexpr std::chrono::milliseconds kOvertake{300};
constexpr int kLevels = spdlog::level::n_levels;
constexpr size_t kLongestLog = 16384;  // bytes of a sentence
// Beyond the grace that a host gives its ranks.
constexpr std::chrono::seconds kHostGrace{5};

constexpr std::string_view kOfALogin[] = {"_",
                                          "COLUMNS",
                                          "DBUS_SESSION_BUS_ADDRESS",
                                          "DISPLAY",
                                          "HOME",
                                          "HOSTNAME",
                                          "LINES",
                                          "LOGNAME",
                                          "MAIL",
                                          "OLDPWD",
                                          "PWD",
                                          "RONDO_RENDEZVOUS",
                                          "SHELL",
                                          "SHLVL",
                                          "STY",
                                          "TMPDIR",
                                          "TMUX",
                                          "RONDO_SECRET",
                                          "TMUX_PANE",
                                          "USER",
                                          "WAYLAND_DISPLAY",
                                          "WINDOWID",
                                          "XAUTHORITY",
                                          "RONDO_SECRET_FILE",
                                          "RONDO_STATUS_SOCKET",
                                          "RONDO_TERMINAL"};

bool belongs_to_a_login(std::string_view name) {
  return name.starts_with("SSH_") || name.starts_with("XDG_") ||
         std::ranges::find(kOfALogin, name) != std::end(kOfALogin);
}

/// The variables of this process that ranks of other hosts get: all except those of a machine or of a
/// login there, such as HOME and DISPLAY.
std::vector<std::pair<std::string, std::string>> environment_for_hosts() {
  std::map<std::string, std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry(*each);
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (!belongs_to_a_login(name)) variables.emplace(name, entry.substr(equals + 1));
  }
  return {variables.begin(), variables.end()};
}

class HostsJob {
 public:
  HostsJob(const HostsOptions& options, const JobOptions& job, TerminalConsole& console)
      : options_(options), job_(job), console_(console), secret_(make_secret()) {
    for (const JobHost& host : options.hosts) {
      hosts_.emplace_back(host, static_cast<int>(hosts_.size()));
      world_size_ += host.ranks;
    }
  }
  /// After an exception: the hosts' ranks end with the links, and nothing is left here.
  ~HostsJob() {
    (void)base::guarded([this] { return cut_off(), Status(); });
  }
  HostsJob(const HostsJob&) = delete;
  HostsJob& operator=(const HostsJob&) = delete;

  JobResult run() {
    if (!signals_.valid()) return {.exit_code = kLauncherExit};
    for (HostState& host : hosts_) {
      if (stopping_) break;  // one before it could not be started
      const Status started = host.link.start(options_.agent);
      if (!started.ok()) fail(host, "cannot start its agent: " + started.message());
    }
    while (std::any_of(hosts_.begin(), hosts_.end(),
                       [](const HostState& h) { return !h.is_over(); })) {
      turn();
    }
    decide();
    console_.finish();
    flush(console_);
    int succeeded = 0;
    for (const HostState& host : hosts_) succeeded += host.result ? host.result->succeeded : 0;
    if (!stopping_ && succeeded == 0) {  // each rank was lost, alone or with its host
      exit_code_ = lost_ ? lost_->exit_code() : kLauncherExit;
      rank_failed_ = true;
    }
    return {.exit_code = exit_code_,
            .rank_failed = rank_failed_ && !interrupted_ && !timed_out_,
            .succeeded = succeeded};
  }

 private:
  struct HostState {
    HostState(const JobHost& host, int number) : link(host, number) {}
    HostLink link;
    bool is_prepared = false, has_started = false;
    std::optional<JobResult> result;
    bool is_lost = false;                            // without a result
    std::optional<Clock::time_point> agent_until;    // then it is killed
    std::optional<Clock::time_point> agent_ends_by;  // it was killed: not waited for any longer
    /// Nothing is expected from it, and its agent has ended, or is not waited for any more.
    bool is_over() const { return (result || is_lost) && (!link.has_agent() || is_given_up); }
    bool is_given_up = false;

    void kill_agent() {
      link.kill_agent(SIGKILL);
      agent_until.reset();
      agent_ends_by = Clock::now() + kHostGrace;
    }
    void give_up() {
      agent_ends_by.reset();
      is_given_up = link.has_agent();
      if (!is_given_up) return;
      spdlog::warn("host {}: its agent does not end, although it was killed", link.name());
    }
  };

  // ---- the loop

  void turn() {
    const bool rests = console_.is_full(STDOUT_FILENO) || console_.is_full(STDERR_FILENO);
    std::vector<pollfd> watched{{signals_.get(), POLLIN, 0}};
    for (const HostState& host : hosts_) host.link.watch(watched, rests);
    console_.watch(watched);
    if (poll_until(watched, next_turn()) > 0) {
      const std::span<const pollfd> all(watched);
      serve_links(all.subspan(1));
      console_.serve(all.subspan(1 + hosts_.size() * HostLink::kDescriptors));
      read_signals();
    }
    if (console_.next_order() && !stopping_) stop();  // its reader is gone
    const auto now = Clock::now();
    for (HostState& host : hosts_) {
      host.link.reap();
      hear(host);
      if (!host.is_over()) host.link.turn(now, rests);
      if (host.link.has_ended()) end(host);
      if (host.agent_until && now >= *host.agent_until) host.kill_agent();
      if (host.agent_ends_by && now >= *host.agent_ends_by) host.give_up();
    }
    console_.turn(now);
    check_time(now);
  }

  Clock::time_point next_turn() const {
    auto until = earliest({timed_out_ ? std::nullopt : job_.deadline, decide_at_, stop_at_,
                           close_at_, kill_at_, console_.next()});
    for (const HostState& host : hosts_) {
      if (host.is_over()) continue;
      until = earliest({until, host.link.next(), host.agent_until, host.agent_ends_by});
    }
    return until;
  }

  void read_signals() {
    while (const auto caught = next_signal(signals_)) act_on(*caught);
  }

  void act_on(const CaughtSignal& caught) {
    switch (use_of(caught.number)) {
      case SignalUse::kChild:
        return;  // agents are looked at in every turn
      case SignalUse::kForward:
        log_passing_on(caught.number);
        return tell_hosts(caught.number);
      case SignalUse::kPause:
        return pause(caught);
      case SignalUse::kEnd:
        return end_by(caught.number);
    }
  }

  void tell_hosts(int signal) {
    for (HostState& host : hosts_) host.link.send(RunMessage::kSignal, std::to_string(signal));
  }

  /// The hosts hear of it before this process stops.
  void pause(const CaughtSignal& cause) {
    tell_hosts(SIGTSTP);
    const auto until = Clock::now() + kMoment;
    const auto has_work = [](const HostState& host) { return host.link.has_work(); };
    while (std::any_of(hosts_.begin(), hosts_.end(), has_work) && Clock::now() < until) {
      std::vector<pollfd> watched;
      for (const HostState& host : hosts_) host.link.watch(watched, true);
      if (poll_until(watched, until) > 0) serve_links(watched);
    }
    if (!stop_until_continued(cause)) tell_hosts(SIGCONT);
  }

  void serve_links(std::span<const pollfd> watched) {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      hosts_[i].link.serve(watched.subspan(i * HostLink::kDescriptors, HostLink::kDescriptors));
    }
  }

  void end_by(int signal) {
    const bool again = interrupted_.has_value();
    if (again && is_echo(signal, Clock::now() - *interrupted_)) return;
    tell_hosts(signal);
    log_passing_on(signal);
    if (!stopping_) exit_code_ = 128 + signal;
    stopping_ = true;
    stop_at_.reset();
    interrupted_ = Clock::now();
    const auto grace = signal == SIGINT ? kInterruptGrace : kPassedOnGrace;
    give_up_after(again ? kGrace : grace, again);
    for (HostState& host : hosts_) {
      if (!host.has_started) abandon(host);  // no rank that could act on it
    }
  }

  void check_time(Clock::time_point now) {
    if (decide_at_ && now >= *decide_at_) decide();
    if (job_.deadline && now >= *job_.deadline && !timed_out_) {
      timed_out_ = true;
      if (!stopping_) {
        spdlog::error("the time limit is over; stopping all ranks");
        exit_code_ = kTimeoutExit;
        stop();
      }
    }
    if (stop_at_ && now >= *stop_at_) stop();
    if (close_at_ && now >= *close_at_) {
      close_at_.reset();
      kill_at_ = now + kHostGrace;
      for (HostState& host : hosts_) host.link.close();
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      for (HostState& host : hosts_) {
        if (host.is_over()) continue;
        spdlog::warn("host {} does not end: processes of this job may be left there",
                     host.link.name());
        host.kill_agent();
        host.is_lost = true;
      }
    }
  }

  // ---- what hosts say

  void hear(HostState& host) {
    try {
      while (auto frame = host.link.next_frame()) handle(host, frame->kind, frame->payload);
    } catch (const std::exception& error) {
      fail(host, fmt::format("what it sends makes no sense: {}", error.what()));
    }
    const auto& version = host.link.version();
    if (version && *version != RONDO_VERSION) {
      fail(host, fmt::format("its rondo-run has version {}, and this one {}: install the same, or "
                             "name it with --remote-rondo-run",
                             *version, RONDO_VERSION));
    } else if (version && !host.is_prepared) {
      host.is_prepared = true;
      prepare(host);
    }
    for (const std::string& line : host.link.take_lines()) {
      console_.show(fmt::format("{}: {}", host.link.name(), line));
    }
  }

  void handle(HostState& host, RunMessage kind, const std::string& payload) {
    switch (kind) {
      case RunMessage::kReady:
        return ready(host, decode<Readiness>(payload));
      case RunMessage::kLine:
      case RunMessage::kClosed: {
        const size_t space = payload.find(' ');
        const int fd = payload.at(0) - '0', rank = std::stoi(payload.substr(1, space - 1));
        if (rank < 0 || rank >= world_size_ || space == std::string::npos) return;
        if (kind == RunMessage::kClosed) return console_.close(rank, fd);
        return console_.print(rank, fd, std::string_view(payload).substr(space + 1));
      }
      case RunMessage::kLog:
        if (host.is_lost) return;  // its end has been reported
        return spdlog::log(
            static_cast<spdlog::level::level_enum>(std::clamp(payload.at(0) - '0', 0, kLevels - 1)),
            "host {}: {}", host.link.name(),
            base::printable(std::string_view(payload).substr(1), kLongestLog));
      case RunMessage::kFailure:
        return rank_failed(decode<RankFailure>(payload));
      case RunMessage::kResult:
        return finished(host, decode<JobResult>(payload));
      default:
        return;  // a sign of life
    }
  }

  void prepare(HostState& host) {
    Preparation preparation{.directory = options_.directory,
                            .environment = environment_for_hosts(),
                            .reserve_for = {},
                            .lost_after_s = options_.agent.lost_after_s};
    if (host.link.number() == 0 && hosts_.size() > 1) {
      preparation.only_this_host = options_.only_this_host;
      preparation.reserve_for = {options_.rendezvous_host.empty() ? host.link.name()
                                                                  : options_.rendezvous_host};
    }
    host.link.send(RunMessage::kPrepare, encode(preparation));
  }

  /// Ranks start when every host is ready, so that none waits for a host that cannot be reached.
  void ready(HostState& host, const Readiness& readiness) {
    if (!readiness.problem.empty()) return fail(host, readiness.problem);
    if (host.link.number() == 0) meeting_ = readiness;
    if (++ready_ < hosts_.size() || stopping_) return;
    int first_rank = 0;
    for (HostState& each : hosts_) {
      JobOptions job = job_;
      job.ranks = each.link.ranks();
      job.part = JobPart{.first_rank = first_rank,
                         .world_size = world_size_,
                         .host = each.link.number(),
                         .hosts = static_cast<int>(hosts_.size()),
                         .master_address = meeting_.address,
                         .master_port = meeting_.master_port,
                         .rendezvous_port = meeting_.rendezvous_port,
                         .secret = secret_};
      each.link.send(RunMessage::kStart, encode(job));
      each.has_started = true;
      first_rank += job.ranks;
    }
  }

  void finished(HostState& host, const JobResult& result) {
    host.result = result;
    host.link.close();
    host.agent_until = Clock::now() + kHostGrace;
    if (result.exit_code == 0 || stopping_) return;
    exit_code_ = result.exit_code;  // rank_failed() has not seen why: nothing could be started
    stop();
  }

  /// The agent has closed its output.
  void end(HostState& host) {
    if (host.result || host.is_lost) return;
    if (!host.link.was_silent() && host.link.has_agent()) return;  // its exit code comes next
    if (host.link.was_silent()) {
      return fail(host, fmt::format("it has been silent for {} s", options_.agent.lost_after_s));
    }
    const int code = host.link.agent_code().value_or(0);
    if (host.link.version()) return fail(host, fmt::format("its agent ended with code {}", code));
    std::string hint =
        "--agent must be a command that, followed by a host and a command line, runs that line "
        "there without asking anything";
    if (options_.agent.words == default_agent()) {
      hint = fmt::format("does \"ssh {} true\" work without a question?", host.link.name());
    }
    if (code == kNotFoundExit) {
      hint = "is rondo-run installed there? --remote-rondo-run PATH names it";
    }
    fail(host,
         fmt::format("cannot start rondo-run there: the agent ended with code {}; {}", code, hint));
  }

  // ---- failures

  void rank_failed(RankFailure failure) {
    failure.survived = job_.elastic && is_a_loss(failure) && !stopping_;
    if (failure.survived) {
      if (!lost_) lost_ = failure;
      return console_.report(failure);
    }
    if (stopping_ && !failure_) return;
    if (!failure_ || (failure.killed && !failure_->killed)) failure_ = failure;
    if (!decide_at_ && !stopping_) decide_at_ = Clock::now() + kOvertake;
    if (!stopping_) stop_at_ = Clock::now() + kMoment;
    stopping_ = rank_failed_ = true;
  }

  /// Says which rank failed first.
  void decide() {
    if (!std::exchange(decide_at_, std::nullopt)) return;
    console_.report(*failure_);
    exit_code_ = failure_->exit_code();
  }

  /// The host can do nothing more for this job.
  void fail(HostState& host, const std::string& reason) {
    const std::string why = base::printable(reason, kLongestLog);  // of the host's own texts
    if (job_.elastic && host.has_started && !stopping_) {
      if (!host.is_lost && !host.result) {
        spdlog::warn("host {}: {}; its ranks are lost, the others go on", host.link.name(), why);
      }
      host.is_lost = true;
      host.agent_until = Clock::now() + kHostGrace;
      return host.link.close();
    }
    if (!host.is_lost && !host.result && (!stopping_ || host.link.was_silent())) {
      spdlog::error("host {}: {}; stopping all ranks", host.link.name(), why);
    }
    host.is_lost = true;
    host.link.close();
    if (stopping_) return;
    exit_code_ = kLauncherExit;
    rank_failed_ = host.has_started;
    stop();
  }

  void stop() {
    stopping_ = true;
    stop_at_.reset();
    for (HostState& host : hosts_) {
      if (host.has_started) {
        host.link.send(RunMessage::kStop);
      } else {
        abandon(host);
      }
    }
    give_up_after(kGrace, false);
  }

  /// No rank has been started there, and none is to be.
  void abandon(HostState& host) {
    host.is_lost = true;
    host.link.close();
    host.link.kill_agent(SIGTERM);
  }

  /// Closes the links and ends their agents.
  void cut_off() {
    for (HostState& host : hosts_) host.link.close();
    const auto until = Clock::now() + kHostGrace;
    base::wait_until([&] {
      const auto now = Clock::now();
      bool all_ended = true;
      for (HostState& host : hosts_) {
        host.link.reap();
        if (now >= until) host.link.kill_agent(SIGKILL);
        all_ended = all_ended && (host.is_given_up || !host.link.has_agent());
      }
      return all_ended || now >= until + kHostGrace;  // then the kernel cannot end one now
    });
  }

  /// When hosts are cut off that have not ended their ranks by themselves.
  void give_up_after(std::chrono::seconds grace, bool even_if_later) {
    if (!close_at_ || even_if_later) close_at_ = Clock::now() + grace + kHostGrace;
  }

  const HostsOptions& options_;
  const JobOptions& job_;
  TerminalConsole& console_;
  const std::string secret_;
  UniqueFd signals_ = watch_signals();
  std::deque<HostState> hosts_;
  int world_size_ = 0;
  size_t ready_ = 0;
  Readiness meeting_;
  std::optional<RankFailure> failure_;
  std::optional<RankFailure> lost_;  // the first that the others survived
  int exit_code_ = 0;
  bool stopping_ = false, rank_failed_ = false, timed_out_ = false;
  std::optional<Clock::time_point> interrupted_;
  std::optional<Clock::time_point> decide_at_, stop_at_, close_at_, kill_at_;
};

}  // namespace

JobResult run_on_hosts(const HostsOptions& options, const JobOptions& job,
                       TerminalConsole& console) {
  return HostsJob(options, job, console).run();
}

}  // namespace rondo::run
