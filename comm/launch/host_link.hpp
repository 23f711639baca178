// One host of a job of several: the agent process that reaches it, and what goes through its pipes.
// Knows nothing of the other hosts.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/launch/agent_lines.hpp"
#include "comm/launch/frames.hpp"
#include "comm/launch/host_list.hpp"
#include "comm/launch/job_clock.hpp"
#include "comm/launch/output_lines.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::run {

/// How hosts are reached.
struct AgentOptions {
  /// The agent's words; a host's name and a command line for a shell there follow.
  std::vector<std::string> words;
  /// rondo-run on the hosts; empty: where this one is, else in the PATH there.
  std::string remote_program;
  double lost_after_s = 60;
};

/// "ssh" and its flags: it never asks, and ends when the host is gone.
std::vector<std::string> default_agent();

/// One thread. The agent leads a session of its own, so that the terminal's Ctrl-C and Ctrl-Z do not
/// reach it, and it cannot ask for a password.
class HostLink {
 public:
  using Time = JobClock::time_point;

  HostLink(JobHost host, int number) : host_(std::move(host)), number_(number) {}
  const std::string& name() const { return host_.name; }
  int ranks() const { return host_.ranks; }
  /// Its place in the list.
  int number() const { return number_; }

  /// Starts the agent; on this host itself, rondo-run without one.
  Status start(const AgentOptions& agent);
  void send(RunMessage kind, std::string_view payload = {});
  /// Whether something of that has yet to be written.
  bool has_work() const { return in_.valid() && sink_->has_work(); }
  /// As Console's. A resting host's output is not read, nor its agent's.
  void watch(std::vector<pollfd>& watched, bool rests) const;
  void serve(std::span<const pollfd> watched);
  static constexpr size_t kDescriptors = 3;
  /// Signs of life, in both directions.
  void turn(Time now, bool rests);
  Time next() const { return signs_.next_sign(); }

  std::optional<ReceivedFrame> next_frame();
  /// The version of rondo there, once it has answered.
  const std::optional<std::string>& version() const { return reader_.version(); }
  /// Lines that the agent, or a shell on the host, has printed since the last call; printable.
  std::vector<std::string> take_lines();
  /// Whether nothing more comes: the agent has closed its output, or has been silent for too long.
  bool has_ended() const { return !out_.valid(); }
  bool was_silent() const { return was_silent_; }
  /// The exit code of the agent, 128 + a signal's number, once reap() has seen it.
  std::optional<int> agent_code() const { return agent_code_; }
  bool has_agent() const { return pid_ > 0 && !agent_code_; }

  /// Nothing more is sent: the host kills its ranks.
  void close() { in_.reset(); }
  void kill_agent(int signal) const;
  /// Notices the agent's end.
  void reap();

 private:
  void read_output();
  void read_errors();

  JobHost host_;
  int number_;
  pid_t pid_ = -1;
  std::optional<int> agent_code_;
  transport::UniqueFd in_, out_, err_;
  std::optional<Sink> sink_;
  FrameReader reader_;
  AgentLines noise_, errors_;  // before the greeting; what the agent writes to its stderr
  SignsOfLife signs_{60};
  bool was_silent_ = false;
};

}  // namespace rondo::run
