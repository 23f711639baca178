#include "tests/transport/cable.hpp"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/transport/child.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::transport::test {
namespace {

std::string ip(const std::string& arguments) {
  const int status = std::system(("ip " + arguments + " >/dev/null 2>&1").c_str());
  return status == 0 ? "" : "failed: ip " + arguments;
}

}  // namespace

std::string why_no_cables() {
  return in_child([] {
    if (std::string failure = leave_network(); !failure.empty()) return failure;
    return ip("link add " + std::string(kCable) + " type veth peer name rondo1");
  });
}

std::string leave_network() {
  // UCX finds devices in /sys/class/net, which shows the namespace in which /sys was mounted.
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
      ::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
      ::mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0) {
    return "";
  }
  return std::string("cannot make a network namespace: ") + std::strerror(errno);
}

std::string lay_cable(pid_t other) {
  const std::string name = kCable;
  return ip("link add " + name + " type veth peer name " + name + " netns " +
            std::to_string(other));
}

std::string await_carrier() {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, kCable);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < deadline) {
    if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return "the cable is gone";
    if ((request.ifr_flags & IFF_RUNNING) != 0) return "";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "the cable has no carrier";
}

std::string take_address(int number) {
  const std::string name = kCable;
  std::string failure = ip("address add 10.77.0." + std::to_string(number) + "/24 dev " + name);
  if (failure.empty()) failure = ip("link set lo up");
  return failure.empty() ? ip("link set " + name + " up") : failure;
}

}  // namespace rondo::transport::test
