// Descriptors of device memory, on their way between the processes of a communicator. Every rank has
// an inbox, a socket to which all others got the other end while the communicator was created: that
// needs neither names nor privileges (pidfd_getfd() would need those of a debugger), so it works in
// containers, too. Waits for nobody: the ranks meet by other means between sending and receiving.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/bootstrap/connection/packet.hpp"
#include "comm/bootstrap/session/rank_exchange.hpp"
#include "rondo/status.hpp"
#include "transport/cuda_ipc/layout.hpp"
#include "transport/cuda_ipc/placement.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::device {

/// Before the descriptors of consecutive pieces of a registration's memory. Sent as bytes of one
/// build of rondo.
struct PieceHeader {
  static constexpr uint32_t kMostPieces = 64;
  transport::cuda_ipc::RegistrationWord word;
  uint32_t rank;          // whose memory it is
  uint32_t first, count;  // of the pieces
  uint64_t bytes[kMostPieces];
};
static_assert(sizeof(PieceHeader) <= comm::kMostPacketBytes);

struct Pieces {
  PieceHeader header;
  std::vector<transport::UniqueFd> descriptors;  // header.count, unless `is_cut_off`
  bool is_cut_off;                               // this process may not have more descriptors
};

/// One thread at a time.
class PieceExchange {
 public:
  /// open(), an exchange in which every rank's last descriptor is its other_end(), connect().
  static Result<std::unique_ptr<PieceExchange>> open();
  int other_end() const { return other_end_.get(); }
  /// `exchanged`, `places`: by rank. All ranks are on one host.
  void connect(std::vector<comm::Parcel>& exchanged,
               std::span<const transport::cuda_ipc::DevicePlace> places, int rank);

  /// How many pieces a rank may send before all ranks have received and met, alike on each. The
  /// kernel limits what a user's descriptors on their way may be to RLIMIT_NOFILE, mostly 1024.
  uint32_t most_at_once() const;
  /// To all other processes' ranks.
  Status send(const PieceHeader& header, std::span<const transport::UniqueFd> descriptors) const;
  /// What has been sent to this rank.
  Result<std::vector<Pieces>> receive() const;

 private:
  PieceExchange() = default;
  transport::UniqueFd inbox_;
  transport::UniqueFd other_end_;  // of the inbox, until connect()
  size_t ranks_ = 0;
  std::vector<transport::UniqueFd> outboxes_;  // of other processes' ranks
};

}  // namespace rondo::device
