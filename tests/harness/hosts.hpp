// Several hosts on one machine, for tests of what spans hosts: network namespaces that a bridge
// joins. tests/harness/hosts does the work and says which names and addresses there are.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace rondo::testing {

/// COUNT hosts with NETWORKS interfaces (eth0, ...) each, removed at the end with every process on
/// them; what a killed test leaves, the next one removes. Tests that use it are added by
/// rondo_hosts_test(), so that they are skipped where hosts cannot be made. Throws if a command
/// fails. One thread at a time.
class Hosts {
 public:
  explicit Hosts(int count, int networks = 1);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  int count() const { return count_; }
  static std::string address(int host, int network = 0);     // "10.77.0.1"
  static std::string address_v6(int host, int network = 0);  // "fd77::1"
  static std::string name(int host);                         // "h0"

  /// The words that run `program` on `host`, for run_program(): in the test's directory and
  /// environment.
  std::vector<std::string> on(int host, const std::vector<std::string>& program) const;
  /// Moves the calling thread to the host's network, for a forked rank; names are still resolved as
  /// on the machine.
  void enter_network(int host) const;
  /// The same with the network in which the bridge is.
  void enter_bridge() const;
  /// As ssh, for a launcher: these words, a host's name or address and a command line.
  std::vector<std::string> agent() const;

  /// The network loses what the interface sends and is sent, without a sign to either end.
  void cut(int host, int network = 0) const;
  void mend(int host, int network = 0) const;

  /// Resets the TCP connections between two hosts, as a firewall does, and returns how many. `port`:
  /// only those of this port of either host; if negative, only the others; 0: all.
  int reset(int host, int other, int port = 0) const;
  /// Whether the kernel can do so; prints the reason if not. Then tests return that reset connections.
  static bool can_reset();

  /// Signals every process of the host.
  void signal(int host, int signal) const;
  void freeze(int host) const;
  void thaw(int host) const;
  /// Those that run on the host now.
  std::vector<pid_t> processes(int host) const;

 private:
  std::string call(const std::vector<std::string>& words) const;
  void enter(const std::string& space) const;
  const int count_;
  std::string group_;
};

}  // namespace rondo::testing
