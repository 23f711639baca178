// Operations of a communicator on GPUs of several hosts, over the links of the GPUs inside each
// host: composed of calls of two other communicators, one of the host's ranks, which is on their
// GPUs (device/device_runner.hpp), and one of the ranks with the same place on every host, which is
// staged. So a byte of a large operation leaves and enters one GPU of each host, not all of them:
//
//   all-reduce      reduce-scatter inside; all-reduce of each rank's share across; all-gather inside
//   broadcast       scatter inside the root's host; broadcast of shares across; all-gather inside
//   all-gather      broadcasts of each host's blocks across; all-gathers inside
//   reduce-scatter  reduce-scatters of each host's blocks inside; reduce-scatter of these sums across
//
// What the ranks of a host cannot share evenly the last one takes. Other collectives, messages, and
// hosts with different numbers of ranks are staged as a whole. On the board of the communicator each
// operation is one; deadlines are the parts', and errors say by which numbers they name ranks.
#pragma once

#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/base/host_map.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo::comm {

/// Thread rule: that of the communicator that has it; look(), abort() and awaited() by any thread.
class DeviceHierarchy : public device::StreamCarrier {
 public:
  using Part = std::unique_ptr<Communicator::Impl>;

  /// Whether ranks on such hosts can have one: as many on each, and several.
  static bool fits(const base::HostMap& hosts);
  /// `inside` and `across` are parts of the communicator that has it. `scratch`: device memory of
  /// `inside`, as much on every rank.
  DeviceHierarchy(Part inside, Part across, const base::HostMap& hosts, int rank,
                  std::span<std::byte> scratch);
  ~DeviceHierarchy() override;

  /// Alike on all ranks.
  bool takes(const engine::Prepared& prepared) const;
  Plan plan(const board::Call& call, bool direct) const;
  uint64_t bytes_sent() const;

  /// A group of calls never waits for itself, since one thread may be several ranks: it refuses one of
  /// more launches than a stream takes, alike on all ranks but for their messages, and makes room for
  /// the programs of all before the first. May wait for this rank's earlier calls. An error of
  /// make_room() is the communicator's, perhaps a part's that status() explains.
  Status refusal(const std::list<engine::Operation>& operations,
                 const std::list<engine::Transfer>& messages) const;
  Status make_room(const std::list<engine::Operation>& operations);

  Status put(const engine::Operation& operation) override;
  Status look() override;
  void abort(const Status& why) override;
  AwaitedRank awaited() const override;

 private:
  // No more than a rank has on its way before it waits for the first (DeviceRunner::keep_bounded(),
  // StagedRunner::await_room()).
  static constexpr size_t kMostLaunches = 256;
  // Inside a host, of one reduce-scatter: their programs must fit into memory together.
  static constexpr size_t kMostCalls = 128;
  /// What each rank of a host takes between hosts: so many elements, and the last one `tail` more.
  struct HostShare {
    size_t part, tail;
  };
  HostShare share_of(const board::Call& call) const;
  /// Calls of one part, at once.
  struct Stage {
    bool is_across;
    std::vector<Request> calls;
    std::vector<std::shared_ptr<const schedule::BlockLayout>> layouts{};  // of calls
  };
  std::vector<Stage> stages_of(const engine::Operation& operation) const;
  std::vector<Stage> all_gather(const engine::Operation& operation) const;
  std::vector<Stage> reduce_scatter(const engine::Operation& operation) const;
  /// Of `count` elements of each block from `begin` on: a call for each host whose ranks they are for.
  Stage sums_inside(const engine::Operation& operation, size_t begin, size_t count) const;
  /// Elements of each block of a reduce-scatter that are summed at a time, of which the scratch memory
  /// holds those for one rank of each host; and how often. 0: it holds too few.
  size_t piece_of(const board::Call& call) const;
  size_t pieces_of(const board::Call& call) const;
  /// By which an operation takes place on the GPUs, at most.
  size_t launches_of(const board::Call& call) const;

  const Part inside_, across_;  // copies of the second, which ends first, read the first's scratch
  const base::HostMap hosts_;
  const int host_, local_, locals_;  // of this rank
  const bool is_consecutive_;        // every host's ranks are
  const std::span<std::byte> scratch_;
};

}  // namespace rondo::comm
