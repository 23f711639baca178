// See console.hpp.
#include "comm/launch/console.hpp"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "rondo/communicator.hpp"

namespace rondo::run {
namespace {

std::vector<std::string> prefixes(int ranks, bool has_prefix) {
  std::vector<std::string> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(has_prefix ? fmt::format("[{}] ", rank) : "");
  }
  return all;
}

}  // namespace

bool is_a_loss(const RankFailure& failure) {
  return failure.killed || failure.status == kLeftOutExitCode;
}

std::string describe(const RankFailure& failure) {
  if (failure.survived && !failure.killed) {
    return fmt::format("rank {} was left out by the others (code {})", failure.rank,
                       failure.status);
  }
  if (!failure.killed) {
    return fmt::format("rank {} exited with code {}", failure.rank, failure.status);
  }
  return fmt::format("rank {} was killed by signal {} ({})", failure.rank, failure.status,
                     strsignal(failure.status));
}

void flush(Console& console) {
  while (console.has_work()) {
    std::vector<pollfd> watched;
    console.watch(watched);
    const int ready = poll_until(watched, JobClock::now() + kGrace);
    if (ready == 0 || (ready < 0 && errno != EINTR)) return;
    if (ready > 0) console.serve(watched);
  }
}

TerminalConsole::TerminalConsole(int ranks, bool prefix)
    : prefixes_(prefixes(ranks, prefix)),
      errors_(prefixes_, [this](std::string_view line) { stderr_.push(line); }) {}

void TerminalConsole::print(int rank, int fd, std::string_view line) {
  if (fd == STDERR_FILENO) return errors_.add(rank, line, JobClock::now());
  stdout_.push(prefixes_[static_cast<size_t>(rank)] + std::string(line));
}

void TerminalConsole::close(int rank, int fd) {
  if (fd == STDERR_FILENO) errors_.end(rank, JobClock::now());
}

void TerminalConsole::report(const RankFailure& failure) {
  if (failure.survived) return spdlog::warn("{}; the others go on", describe(failure));
  spdlog::error("{}; stopping the others", describe(failure));
}

bool TerminalConsole::is_full(int fd) const {
  return (fd == STDERR_FILENO ? stderr_ : stdout_).is_full();
}

void TerminalConsole::watch(std::vector<pollfd>& watched) const {
  for (const Sink* sink : {&stdout_, &stderr_}) {
    watched.push_back({sink->has_work() ? sink->fd() : -1, POLLOUT, 0});
  }
}

void TerminalConsole::serve(std::span<const pollfd> watched) {
  if (watched[0].revents != 0) stdout_.write_some();
  if (watched[1].revents != 0) stderr_.write_some();
}

std::optional<Order> TerminalConsole::next_order() {
  if (!reader_is_gone() || std::exchange(has_ordered_stop_, true)) return std::nullopt;
  return Order{.what = Order::What::kStop};
}

int TerminalConsole::exit_code() const {
  if (reader_is_gone()) {
    spdlog::error("the reader of the output has ended: what came after that is lost");
    return kPipeExit;
  }
  if (stdout_.error() == 0) return 0;
  spdlog::error("cannot write to stdout: {}", std::strerror(stdout_.error()));
  return kLauncherExit;
}

}  // namespace rondo::run
