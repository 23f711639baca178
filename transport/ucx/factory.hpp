// The transport between hosts, over UCX. UCX is loaded when the first rank opens its resources; a
// build or a machine without it answers kUnavailable. Not for ranks of one host: shm is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "transport/link.hpp"

namespace rondo::transport::ucx {

/// How many messages of the peer's a reader may have released without saying so. A link has so many
/// slots more than `depth`, so that its writer still finds those that the contract promises.
constexpr uint32_t reserve_of(uint32_t depth) { return (depth + 1) / 2; }
constexpr uint32_t slots_of(uint32_t depth) { return depth + reserve_of(depth); }

/// Memory of the caller's for the slots of all links, where someone else fills and reads them: a GPU.
/// Such links have Sender::reusable() and Receiver::try_peek_ahead().
struct SlotPlaces {
  static constexpr size_t kGap = 64;  // of the transport's, before each slot
  /// The first slot of the link on that channel to or from that peer; the others follow, `stride`
  /// bytes apart, slots_of(depth) in all. Zeroed, unless on_gpu; outlives the transport.
  std::function<std::byte*(int channel, int peer, bool inbound)> first{};
  size_t stride = 0;
  /// The slots lie in a GPU's memory (GPUDirect), which this process does not touch: a message's header
  /// travels by itself. Equal on all ranks.
  bool on_gpu = false;
};

/// Equal on every rank, but for the interface and what follows it.
struct UcxSettings {
  int channels = 1;
  uint32_t depth = 8;     // slots of a link
  size_t slot_bytes = 0;  // capacity of a slot; below 4 GiB
  /// With RDMA devices (rdma.hpp), unless the user has set UCX_NET_DEVICES; empty: UCX decides.
  std::string interface {};
  bool all_rdma = false;  // also devices that do not belong to that interface
  /// Ports to listen at over TCP, unless the user has set UCX_TCP_PORT_RANGE; 0: any.
  int first_port = 0, last_port = 0;
  SlotPlaces places{};  // empty: the transport's own memory
};
using Settings = UcxSettings;  // a type's own name is unique in the project

/// Whether UCX knows the memory of GPUs and has devices for RDMA: over TCP it would copy. Not whether
/// the kernel lets these devices reach GPUs (nvidia-peermem, or dmabuf). Error: as open()'s.
Result<bool> reaches_gpus(const Settings& settings);

struct PeerAddress {
  /// What that rank's Opened::address() gave. Empty: no links to that rank (this rank itself, or a
  /// rank of this host).
  std::string address;
  std::string name;  // for messages: "rank 3 on host b"
};

/// A rank's UCX resources before the ranks have exchanged addresses: one context, one worker per
/// channel.
class Opened {
 public:
  virtual ~Opened() = default;
  /// For the other ranks; believed by them, so it must travel authenticated.
  virtual const std::string& address() const = 0;
};

/// Loads UCX if this process has not done so yet, and returns its version ("1.13.1").
/// Error: kUnavailable, which names the packages to install.
Result<std::string> version();

/// Loads UCX where that has not happened. Errors: kUnavailable with the packages to install,
/// kInvalidArgument, kResourceExhausted where too few ports are free, kSystem with UCX's reason.
Result<std::unique_ptr<Opened>> open(const Settings& settings);

/// `peers`: one per rank. The Transport has links to the peers with an address; memory and a
/// connection are made when a link is first used. Its destructor takes at most a second and a half;
/// a forked child may run it, and nothing else. Errors: kInvalidArgument where an address makes no
/// sense, or comes from other settings or another version of UCX.
Result<std::unique_ptr<Transport>> connect(std::unique_ptr<Opened> opened, int rank,
                                           std::vector<PeerAddress> peers);

}  // namespace rondo::transport::ucx
