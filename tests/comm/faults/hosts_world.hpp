// Worlds whose ranks are processes on several hosts (harness/hosts.hpp), and what each rank ended
// with and when: the frame of the tests of faults between hosts.
#pragma once

#include <sys/mman.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/comm/communicator/world.hpp"
#include "tests/harness/hosts.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {

/// What a machine that has other work may add to any time in which something is to happen.
inline constexpr double kBusyS = 5;

/// What a rank ended with, in memory that the test shares with it. A rank that never said has
/// at_ns == 0.
struct Outcome {
  int64_t at_ns;       // CLOCK_MONOTONIC
  int64_t leaving_ns;  // of ranks that say so: when they began to destroy it
  int64_t gone_ns;     // when its communicator was destroyed
  Code code;
  char text[1100];

  void is(const Status& status);
};

/// `count` objects, all bytes zero, that forked ranks share with the test.
template <class T>
std::shared_ptr<T> shared_array(size_t count) {
  const size_t bytes = count * sizeof(T);
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no shared memory");
  return {static_cast<T*>(at), [bytes](T* all) { munmap(all, bytes); }};
}

/// Which host each rank is on: {0, 0, 1, 1}.
using Placement = std::vector<int>;
inline const Placement kFour{0, 0, 1, 1};

/// The ranks from 0 to `size` - 1 without one.
inline std::vector<int> all_but(int left_out, int size = 4) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != left_out) ranks.push_back(rank);
  }
  return ranks;
}
inline const std::vector<int> kAllFour = all_but(-1);

/// A communicator over hosts, one process for each rank. The body's status is the rank's outcome.
/// Thread rule: the test's thread.
class HostsGang {
 public:
  using Body = std::function<Status(Communicator&, Link&)>;
  /// What to do without a communicator: `config` is the rank's, complete.
  using RawBody = std::function<Status(const Config& config, Link&, Outcome&)>;

  HostsGang(const Hosts& hosts, Placement placement, const Body& body, const Config& config = {},
            std::chrono::seconds limit = std::chrono::seconds{40});
  static HostsGang raw(const Hosts& hosts, Placement placement, const RawBody& body,
                       const Config& config = {},
                       std::chrono::seconds limit = std::chrono::seconds{40});
  HostsGang(HostsGang&&) = default;
  HostsGang& operator=(HostsGang&&) = default;

  int size() const { return static_cast<int>(placement_.size()); }
  int host_of(int rank) const { return placement_[static_cast<size_t>(rank)]; }
  ForkGang& ranks() { return *ranks_; }
  /// Waits until all ranks have announced `event`.
  void await_all(const std::string& event);
  /// Waits until all ranks have announced "met", tells them "go", and returns when.
  int64_t begin();
  /// Returns when it has sent it.
  int64_t signal(int rank, int signal);
  /// Valid once the rank has ended, or has announced that it has one.
  const Outcome& outcome(int rank) const { return outcomes_.get()[rank]; }

  /// What survivors of a fault must show.
  struct Wanted {
    std::string row;  // printed with the longest time to an error
    std::vector<int> survivors;
    std::vector<Code> codes;            // one of them, the same on all
    std::vector<std::string> says{};    // every text contains all of them,
    std::vector<std::string> one_of{};  // and one of these, and
    std::vector<std::string> called{};  // one of these: Operation::names
    std::vector<int> ends_too{};        // with an error of its own
    double gone_within_s = 2.5;         // of the error, the communicator is destroyed
    double within_s;                    // of the fault, on all
    bool same_text = false;
  };
  /// Waits for the survivors, kills the others, checks, and returns the longest time to an error.
  double check(int64_t fault_ns, const Wanted& wanted);

 private:
  HostsGang() = default;
  Placement placement_;
  std::shared_ptr<Outcome> outcomes_;
  std::unique_ptr<ForkGang> ranks_;
};

/// Waits for all ranks, and fails the test unless each ends well.
void require_all_fine(HostsGang& gang);

int64_t now_ns();

/// Prints how long something took.
void show_time(const std::string& row, double seconds);

}  // namespace rondo::testing
