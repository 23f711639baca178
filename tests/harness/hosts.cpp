// See hosts.hpp. Part of every test program with hosts: where they cannot be made, it prints the
// reason and exits with 77 before the first case, which CTest shows as skipped.
#include "tests/harness/hosts.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

ProgramResult run_tool(const std::vector<std::string>& words) {
  std::vector<std::string> command = {RONDO_SOURCE "/tests/harness/hosts"};
  command.insert(command.end(), words.begin(), words.end());
  return run_program(command);
}

[[maybe_unused]] const bool kHostsCanBeMade = [] {
  const ProgramResult probe = run_tool({"probe"});
  if (probe.exit_code == 0) return true;
  std::printf("%s%s", probe.out.c_str(), probe.err.c_str());
  std::fflush(stdout);
  std::_Exit(probe.exit_code);
}();

}  // namespace

Hosts::Hosts(int count, int networks) : count_(count) {
  group_ = call({"up", std::to_string(getpid()), std::to_string(count), std::to_string(networks)});
  group_.pop_back();  // the line's end
}

Hosts::~Hosts() { run_tool({"down", group_}); }

std::string Hosts::address(int host, int network) {
  return "10." + std::to_string(77 + network) + ".0." + std::to_string(host + 1);
}

std::string Hosts::address_v6(int host, int network) {
  char text[32];
  std::snprintf(text, sizeof text, "fd%d::%x", 77 + network, static_cast<unsigned>(host + 1));
  return text;
}

std::string Hosts::name(int host) { return "h" + std::to_string(host); }

std::vector<std::string> Hosts::on(int host, const std::vector<std::string>& program) const {
  std::vector<std::string> words = {RONDO_SOURCE "/tests/harness/hosts", "on", group_, name(host)};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

void Hosts::enter_network(int host) const { enter(std::to_string(host)); }

void Hosts::enter_bridge() const { enter("net"); }

void Hosts::enter(const std::string& space) const {
  const std::string path = "/run/netns/" + group_ + "-" + space;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter " + path);
  close(fd);
}

std::vector<std::string> Hosts::agent() const {
  return {RONDO_SOURCE "/tests/harness/hosts", "agent", group_};
}

void Hosts::cut(int host, int network) const {
  call({"cut", group_, name(host), std::to_string(network)});
}

void Hosts::mend(int host, int network) const {
  call({"mend", group_, name(host), std::to_string(network)});
}

int Hosts::reset(int host, int other, int port) const {
  std::vector<std::string> words{"reset", group_, name(host), name(other)};
  if (port != 0) words.push_back(std::to_string(port));
  return std::stoi(call(words));
}

bool Hosts::can_reset() {
  const ProgramResult probe = run_tool({"probe_reset"});
  std::printf("%s%s", probe.out.c_str(), probe.err.c_str());
  return probe.exit_code == 0;
}

void Hosts::signal(int host, int signal) const {
  call({"signal", group_, name(host), std::to_string(signal)});
}

void Hosts::freeze(int host) const { signal(host, SIGSTOP); }

void Hosts::thaw(int host) const { signal(host, SIGCONT); }

std::vector<pid_t> Hosts::processes(int host) const {
  std::istringstream text(call({"pids", group_, name(host)}));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; text >> pid;) pids.push_back(pid);
  return pids;
}

std::string Hosts::call(const std::vector<std::string>& words) const {
  ProgramResult result = run_tool(words);
  if (result.exit_code != 0) {
    throw std::runtime_error("tests/harness/hosts " + words[0] + ": " + result.out + result.err);
  }
  return std::move(result.out);
}

}  // namespace rondo::testing
