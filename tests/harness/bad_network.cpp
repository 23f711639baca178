// See bad_network.hpp. The relay is a switch: it reads Ethernet frames at the hosts' ends of the bridge
// (packet sockets), learns from them which address is at which port, and keeps each until it is due.
#include "tests/harness/bad_network.hpp"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace rondo::testing {
namespace {

using Address = std::array<char, ETH_ALEN>;

constexpr size_t kMostFrame = 65'536;
constexpr double kMostWaitingBytes = 262'144;
constexpr int kSocketBytes = 8 << 20;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

int checked(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  return result;
}

/// Of the calling thread's host: checksums and segments are made before the wire, as by a card, so that
/// frames are whole and no larger than a wire's.
void finish_frames_before_the_wire() {
  const int fd = checked(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  ethtool_value off{.cmd = ETHTOOL_STXCSUM, .data = 0};
  ifreq request{};
  std::strcpy(request.ifr_name, "eth0");
  request.ifr_data = reinterpret_cast<char*>(&off);
  checked(ioctl(fd, SIOCETHTOOL, &request), "ethtool");
  close(fd);
}

/// All frames that `host` sends, and none that it is sent; REQUIRES: the bridge's network.
int open_port(int host) {
  const int fd =
      checked(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "packet socket");
  const int on = 1;
  checked(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on), "ignore outgoing");
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBytes, sizeof kSocketBytes);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kSocketBytes, sizeof kSocketBytes);
  sockaddr_ll at{};
  at.sll_family = AF_PACKET;
  at.sll_protocol = htons(ETH_P_ALL);
  at.sll_ifindex = static_cast<int>(if_nametoindex(("port0-" + std::to_string(host)).c_str()));
  checked(bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), "bind to a port");
  return fd;
}

}  // namespace

class BadNetwork::Relay {
 public:
  Relay(const Hosts& hosts, unsigned seed, int requests) : requests_(requests), random_(seed) {
    for (int host = 0; host < hosts.count(); ++host) {
      hosts.enter_network(host);
      finish_frames_before_the_wire();
    }
    hosts.enter_bridge();
    for (int host = 0; host < hosts.count(); ++host) ports_.push_back(open_port(host));
    wires_.resize(ports_.size() * ports_.size());
  }

  /// Until the other end of the requests is closed.
  void run() {
    while (answer()) {
      for (size_t from = 0; from < ports_.size(); ++from) receive(static_cast<int>(from));
      pass_on();
      wait();
    }
  }

 private:
  struct Waiting {
    int64_t due_ns;
    uint64_t number;  // in the order in which they came
    int from, to;
    std::string frame;
    bool operator<(const Waiting& other) const {  // the first one due is the greatest
      return std::pair(other.due_ns, other.number) < std::pair(due_ns, number);
    }
  };
  struct Line {
    Wire wire;
    int64_t free_ns = 0;  // when the frames have left that came so far
    uint64_t newest = 0;  // of those that were passed on
  };

  Line& line(int from, int to) {
    return wires_[static_cast<size_t>(from) * ports_.size() + static_cast<size_t>(to)];
  }

  bool answer() {
    Request request{};
    const ssize_t got = recv(requests_, &request, sizeof request, MSG_DONTWAIT);
    if (got < 0) return true;
    if (got == 0) return false;
    if (request.from >= 0) line(request.from, request.to).wire = request.wire;
    (void)send(requests_, &counts_, sizeof counts_, MSG_NOSIGNAL);
    return true;
  }

  void receive(int from) {
    constexpr int kMostAtOnce = 64;
    for (int i = 0; i < kMostAtOnce; ++i) {
      const ssize_t got =
          recv(ports_[static_cast<size_t>(from)], buffer_.data(), buffer_.size(), 0);
      if (got < ETHER_HDR_LEN) return;
      const std::string frame(buffer_.data(), static_cast<size_t>(got));
      Address destination, source;
      std::copy_n(frame.begin(), ETH_ALEN, destination.begin());
      std::copy_n(frame.begin() + ETH_ALEN, ETH_ALEN, source.begin());
      places_[source] = from;
      const auto place = places_.find(destination);
      for (int to = 0; to < static_cast<int>(ports_.size()); ++to) {
        if (to != from && (place == places_.end() || place->second == to)) enter(from, to, frame);
      }
    }
  }

  void enter(int from, int to, const std::string& frame) {
    Line& at = line(from, to);
    const Wire& wire = at.wire;
    const auto chance = [&] { return std::uniform_real_distribution<double>()(random_); };
    const int64_t now = now_ns();
    at.free_ns = std::max(at.free_ns, now);
    const double waiting_bytes = static_cast<double>(at.free_ns - now) * 1e-9 * wire.bytes_per_s;
    if (chance() < wire.lost || waiting_bytes > kMostWaitingBytes) {
      ++counts_.lost;
      return;
    }
    if (wire.bytes_per_s > 0) {
      at.free_ns +=
          static_cast<int64_t>(static_cast<double>(frame.size()) * 1e9 / wire.bytes_per_s);
    }
    const bool twice = chance() < wire.doubled;
    counts_.doubled += twice ? 1 : 0;
    for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
      const std::chrono::nanoseconds delay = wire.delay, jitter = wire.jitter;
      const auto more = static_cast<int64_t>(chance() * static_cast<double>(jitter.count()));
      waiting_.push({at.free_ns + delay.count() + more, ++number_, from, to, frame});
    }
  }

  void pass_on() {
    for (; !waiting_.empty() && waiting_.top().due_ns <= now_ns(); waiting_.pop()) {
      const Waiting& first = waiting_.top();
      // A port that takes no more loses the frame, as a switch does.
      const ssize_t sent = send(ports_[static_cast<size_t>(first.to)], first.frame.data(),
                                first.frame.size(), MSG_DONTWAIT);
      Line& at = line(first.from, first.to);
      ++(sent < 0 ? counts_.lost : counts_.passed);
      counts_.overtaken += first.number < at.newest ? 1 : 0;
      at.newest = std::max(at.newest, first.number);
    }
  }

  void wait() {
    std::vector<pollfd> watched{{requests_, POLLIN, 0}};
    for (const int port : ports_) watched.push_back({port, POLLIN, 0});
    const int64_t most = 100'000'000;
    const int64_t left =
        waiting_.empty() ? most : std::clamp<int64_t>(waiting_.top().due_ns - now_ns(), 0, most);
    const timespec limit{0, left};
    (void)ppoll(watched.data(), watched.size(), &limit, nullptr);
  }

  const int requests_;
  std::mt19937_64 random_;
  std::vector<int> ports_;
  std::vector<Line> wires_;
  std::map<Address, int> places_;
  std::priority_queue<Waiting> waiting_;
  uint64_t number_ = 0;
  Counts counts_{};
  std::vector<char> buffer_ = std::vector<char>(kMostFrame);
};

BadNetwork::BadNetwork(const Hosts& hosts, unsigned seed) : hosts_(hosts) {
  int pair[2];
  checked(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "socketpair");
  for (int host = 0; host < hosts.count(); ++host) hosts.cut(host);
  const pid_t parent = getpid();
  std::fflush(nullptr);
  relay_ = checked(fork(), "fork");
  if (relay_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(pair[0]);
    try {
      Relay(hosts, seed, pair[1]).run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the relay of a bad network: %s\n", error.what());
    }
    _exit(0);
  }
  close(pair[1]);
  socket_ = pair[0];
  (void)counts();  // once it answers, it passes frames on
}

BadNetwork::~BadNetwork() {
  close(socket_);
  kill(relay_, SIGKILL);
  while (waitpid(relay_, nullptr, 0) < 0 && errno == EINTR) {
  }
  for (int host = 0; host < hosts_.count(); ++host) hosts_.mend(host);
}

void BadNetwork::set_all(const Wire& wire) {
  for (int from = 0; from < hosts_.count(); ++from) {
    for (int to = 0; to < hosts_.count(); ++to) set(from, to, wire);
  }
}

void BadNetwork::cut(int host) {
  for (int other = 0; other < hosts_.count(); ++other) {
    set(host, other, Wire::none());
    set(other, host, Wire::none());
  }
}

BadNetwork::Counts BadNetwork::ask(const Request& request) const {
  Counts counts{};
  checked(static_cast<int>(send(socket_, &request, sizeof request, MSG_NOSIGNAL)), "to the relay");
  const ssize_t got = recv(socket_, &counts, sizeof counts, 0);
  if (got != sizeof counts) throw std::runtime_error("the relay of a bad network has ended");
  return counts;
}

}  // namespace rondo::testing
