// See port_probe.hpp.
#include "comm/control/port_probe.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "comm/base/clock.hpp"
#include "comm/bootstrap/connection/interface.hpp"

namespace rondo::comm {
namespace {

constexpr int64_t kFirstPauseNs = 20'000'000, kLongestPauseNs = 1'000'000'000;
constexpr int64_t kAttemptNs = 1'000'000'000;  // then another begins

}  // namespace

// A process's listening socket is closed at its end at the latest; a stopped process's is not.
bool PortProbe::is_refused() {
  if (refused_) return true;
  const int64_t now = base::now_ns();
  if (socket_.valid()) {
    pollfd writable{socket_.get(), POLLOUT, 0};
    if (poll(&writable, 1, 0) > 0) {
      int error = 0;
      socklen_t bytes = sizeof error;
      (void)getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      conclude(error);
    } else if (now - began_ns_ > kAttemptNs) {
      socket_.reset();
    }
    return refused_;
  }
  if (began_ns_ != 0 && now - began_ns_ < pause_ns_) return false;
  began_ns_ = now;
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
  const auto address = parse_address(address_, port_);
  if (!address.ok()) return false;
  socket_ = transport::UniqueFd(
      socket(address->get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_.valid()) return false;
  const int made = connect(socket_.get(), address->get(), address->bytes);
  if (made == 0 || errno != EINPROGRESS) conclude(made == 0 ? 0 : errno);
  return refused_;
}

void PortProbe::conclude(int error) {
  socket_.reset();
  refused_ = error == ECONNREFUSED;
}

}  // namespace rondo::comm
