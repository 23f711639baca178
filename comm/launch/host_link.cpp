// See host_link.hpp.
#include "comm/launch/host_link.hpp"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "comm/bootstrap/connection/interface.hpp"
#include "comm/launch/child.hpp"

namespace rondo::run {
namespace {

std::string own_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

/// A word for a shell, as it is.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// For whatever shell the user has on the host: only single quotes mean the same in all of them.
std::string remote_command(const std::string& program) {
  if (!program.empty()) return "exec " + quoted(program) + " --serve";
  const std::string script =
      "if test -x \"$0\"; then exec \"$0\" --serve; fi; exec rondo-run --serve";
  return "exec /bin/sh -c " + quoted(script) + " " + quoted(own_program());
}

}  // namespace

std::vector<std::string> default_agent() {
  return {"ssh",
          "-x",
          "-T",
          "-o",
          "BatchMode=yes",
          "-o",
          "ConnectTimeout=20",
          "-o",
          "ServerAliveInterval=10",
          "-o",
          "ServerAliveCountMax=3"};
}

Status HostLink::start(const AgentOptions& agent) {
  signs_ = SignsOfLife(agent.lost_after_s);
  std::vector<std::string> words = {own_program(), "--serve"};
  if (!comm::is_this_host(host_.name)) {
    words = agent.words;
    words.insert(words.end(), {host_.name, remote_command(agent.remote_program)});
  }
  // SIGTERM, because an agent that has not connected yet would not notice the end of its stdin.
  Child child = start_child(
      {.words = std::move(words), .signal_at_end = SIGTERM, .has_input = true, .prepare = [] {
         setsid();
       }});
  if (!child.status.ok()) return std::move(child.status);
  pid_ = child.pid;
  in_ = std::move(child.in);
  out_ = std::move(child.out);
  err_ = std::move(child.err);
  sink_.emplace(in_.get());
  sink_->push(greeting());
  return {};
}

void HostLink::send(RunMessage kind, std::string_view payload) {
  if (in_.valid()) sink_->push(pack(kind, payload));
}

void HostLink::watch(std::vector<pollfd>& watched, bool rests) const {
  watched.push_back({has_work() ? in_.get() : -1, POLLOUT, 0});
  watched.push_back({rests ? -1 : out_.get(), POLLIN, 0});
  watched.push_back({rests ? -1 : err_.get(), POLLIN, 0});
}

void HostLink::serve(std::span<const pollfd> watched) {
  if (watched[0].revents != 0 && in_.valid()) sink_->write_some();
  if (watched[1].revents != 0) read_output();
  if (watched[2].revents != 0) read_errors();
}

void HostLink::read_output() {
  signs_.heard(JobClock::now());
  if (read_some(out_.get(), [this](std::string_view bytes) { reader_.feed(bytes); })) return;
  reader_.finish();
  out_.reset();
}

void HostLink::read_errors() {
  if (read_some(err_.get(), [this](std::string_view bytes) { errors_.feed(bytes); })) return;
  errors_.finish();
  err_.reset();
}

void HostLink::turn(Time now, bool rests) {
  if (rests) signs_.heard(now);
  if (signs_.takes_sign(now)) send(RunMessage::kAlive);
  if (out_.valid() && now >= signs_.lost_at()) {
    was_silent_ = true;
    out_.reset();
    close();
    kill_agent(SIGKILL);
  }
}

std::optional<ReceivedFrame> HostLink::next_frame() {
  auto frame = reader_.next();
  noise_.feed(reader_.take_noise());
  if (version() || !out_.valid()) noise_.finish();
  return frame;
}

std::vector<std::string> HostLink::take_lines() {
  std::vector<std::string> lines = noise_.take();
  std::ranges::move(errors_.take(), std::back_inserter(lines));
  return lines;
}

void HostLink::kill_agent(int signal) const {
  if (has_agent()) kill(-pid_, signal);
}

void HostLink::reap() {
  int status = 0;
  if (!has_agent() || waitpid(pid_, &status, WNOHANG) != pid_) return;
  agent_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace rondo::run
