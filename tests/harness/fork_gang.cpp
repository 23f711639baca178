// Forked ranks: a socket per child carries events and the result up, and words down. A child never
// returns into the test program: it leaves through _exit, and dies with its parent.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Messages are datagrams of a type letter and text: an event, or what a failed rank said last.
constexpr char kEvent = 'e';
constexpr char kFailure = 'f';
constexpr char kDone = 'd';
constexpr size_t kMaxMessage = 16384;

void send_message(int fd, char type, const std::string& text) {
  const std::string packet = type + text.substr(0, kMaxMessage - 1);
  while (send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

[[noreturn]] void run_child(int rank, const ForkGang::Body& body, Link& link, int fd) {
  int code = 0;
  try {
    body(rank, link);
    send_message(fd, kDone, "");
  } catch (const std::exception& e) {
    send_message(fd, kFailure, e.what());
    code = 1;
  }
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

void Link::announce(const std::string& event) { send_message(fd_, kEvent, event); }

void Link::await(const std::string& word) {
  char text[256];
  ssize_t got = 0;
  do {
    got = recv(fd_, text, sizeof text, 0);
  } while (got < 0 && errno == EINTR);
  const std::string heard(text, got > 0 ? static_cast<size_t>(got) : 0);
  expect(heard == word, "waited for \"" + word + "\" from the test, got \"" + heard + "\"");
}

struct ForkGang::Impl {
  struct Child {
    pid_t pid = 0;
    int fd = -1;
    bool ended = false;
    bool said_done = false;
    std::vector<std::string> events;  // announced and not yet awaited
    RankResult result;
  };

  std::vector<Child> children;
  Clock::time_point start = Clock::now();
  Clock::time_point deadline;

  Child& at(int rank) { return children.at(static_cast<size_t>(rank)); }
  double now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  /// Waits for one message or end of any child that still runs; false at the deadline.
  bool turn() {
    std::vector<pollfd> watched;
    for (const Child& child : children) watched.push_back({child.ended ? -1 : child.fd, POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = poll(watched.data(), watched.size(),
                           static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
    if (ready == 0) return false;
    for (size_t i = 0; i < children.size(); ++i) {
      if (ready > 0 && watched[i].revents != 0) hear(children[i]);
    }
    return true;
  }

  void hear(Child& child) {
    char packet[kMaxMessage];
    const ssize_t got = recv(child.fd, packet, sizeof packet, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) return bury(child);
    const std::string text(packet + 1, static_cast<size_t>(got) - 1);
    if (packet[0] == kEvent) child.events.push_back(text);
    if (packet[0] == kFailure) child.result.message = text;
    if (packet[0] == kDone) child.said_done = true;
  }

  void bury(Child& child) {
    int status = 0;
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    child.ended = true;
    RankResult& result = child.result;
    result.seconds = now();
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    result.ok = child.said_done && WIFEXITED(status) && result.exit_code == 0;
    if (!result.ok && result.message.empty()) {
      result.message = result.signal != 0 ? strsignal(result.signal)
                                          : "exited with " + std::to_string(result.exit_code);
    }
  }

  void kill_all(const std::string& reason) {
    for (Child& child : children) {
      if (child.ended) continue;
      ::kill(child.pid, SIGKILL);
      const std::string last = child.events.empty() ? "nothing" : child.events.back();
      child.result.message = reason + "; last announced: " + last;
      bury(child);
    }
  }
};

ForkGang::ForkGang(int n, const Body& body, std::chrono::seconds limit)
    : impl_(std::make_unique<Impl>()) {
  impl_->deadline = impl_->start + limit;
  const pid_t parent = getpid();
  std::fflush(nullptr);
  for (int rank = 0; rank < n; ++rank) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      throw std::runtime_error("socketpair failed");
    }
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      close(pair[0]);
      for (Impl::Child& sibling : impl_->children) close(sibling.fd);
      Link link(pair[1]);
      run_child(rank, body, link, pair[1]);
    }
    close(pair[1]);
    Impl::Child child;
    child.pid = pid;
    child.fd = pair[0];
    child.result.rank = rank;
    impl_->children.push_back(std::move(child));
  }
}

ForkGang::~ForkGang() {
  impl_->kill_all("the test ended first");
  for (Impl::Child& child : impl_->children) close(child.fd);
}

void ForkGang::await(int rank, const std::string& event) {
  Impl::Child& child = impl_->at(rank);
  while (true) {
    auto found = std::find(child.events.begin(), child.events.end(), event);
    if (found != child.events.end()) {
      child.events.erase(found);
      return;
    }
    const std::string what =
        "rank " + std::to_string(rank) + " did not announce \"" + event + "\": ";
    if (child.ended) throw std::runtime_error(what + "it ended: " + child.result.message);
    if (!impl_->turn()) throw std::runtime_error(what + "time is over");
  }
}

void ForkGang::await_end(int rank) {
  while (!impl_->at(rank).ended) {
    if (!impl_->turn()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " did not end: time is over");
    }
  }
}

void ForkGang::tell(int rank, const std::string& word) {
  (void)send(impl_->at(rank).fd, word.data(), word.size(), MSG_NOSIGNAL);
}

void ForkGang::kill(int rank, int signal) {
  if (!impl_->at(rank).ended) ::kill(impl_->at(rank).pid, signal);
}

pid_t ForkGang::pid(int rank) const { return impl_->at(rank).pid; }
double ForkGang::seconds() const { return impl_->now(); }

std::vector<RankResult> ForkGang::join() {
  auto running = [](const Impl::Child& child) { return !child.ended; };
  while (std::any_of(impl_->children.begin(), impl_->children.end(), running)) {
    if (!impl_->turn()) impl_->kill_all("killed: still running at the limit");
  }
  std::vector<RankResult> results;
  for (const Impl::Child& child : impl_->children) results.push_back(child.result);
  return results;
}

}  // namespace rondo::testing
