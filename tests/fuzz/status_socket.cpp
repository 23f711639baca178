// A launcher's answer to rondo-status. Input: the packet's text.
#include "comm/status/socket.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {

void run(std::string_view input) {
  const auto job = status::parse_job(std::string(input));
  if (!job.ok()) return must(!job.status().message().empty(), "an error has a text");
  must(job->command.size() <= input.size(), "a command is part of the packet");
  for (const char c : job->command) {
    must(static_cast<unsigned char>(c) >= ' ' && c != 0x7f, "a command moves no cursor");
  }
  const auto again = status::parse_job(status::describe(*job));
  must(again.ok() && again->pid == job->pid && again->ranks == job->ranks &&
           again->started_s == job->started_s && again->command.starts_with(job->command),
       "what was read can be sent");
}

std::vector<std::string> seeds() {
  return {status::describe({.pid = 17, .ranks = 4, .started_s = 1'700'000'000, .command = "train"}),
          status::describe({.pid = 1, .ranks = 1, .started_s = 0, .command = "a\nb \x1b[2J"}),
          "17 4", "-1 99999999999 1\nx"};
}

}  // namespace rondo::fuzz
