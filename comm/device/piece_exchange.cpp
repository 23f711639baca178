#include "comm/device/piece_exchange.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/bootstrap/connection/connection.hpp"

namespace rondo::device {

using transport::UniqueFd;

Result<std::unique_ptr<PieceExchange>> PieceExchange::open() {
  std::unique_ptr<PieceExchange> made(new PieceExchange);
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return comm::system_status("socketpair", errno);
  }
  made->inbox_.reset(ends[0]);
  made->other_end_.reset(ends[1]);
  return made;
}

void PieceExchange::connect(std::vector<comm::Parcel>& exchanged,
                            std::span<const transport::cuda_ipc::DevicePlace> places, int rank) {
  other_end_.reset();
  ranks_ = exchanged.size();
  for (size_t r = 0; r < ranks_; ++r) {
    if (places[r].process == places[static_cast<size_t>(rank)].process) continue;
    outboxes_.push_back(std::move(exchanged[r].fds.at(0)));
  }
}

uint32_t PieceExchange::most_at_once() const {
  // Twice, because a rank that has received sends again before others have.
  constexpr size_t kMostOnTheirWay = 512;
  const size_t most = kMostOnTheirWay / (2 * ranks_ * (ranks_ - 1));
  return static_cast<uint32_t>(std::clamp<size_t>(most, 1, PieceHeader::kMostPieces));
}

Status PieceExchange::send(const PieceHeader& header, std::span<const UniqueFd> descriptors) const {
  std::vector<int> fds;
  for (const UniqueFd& each : descriptors) fds.push_back(each.get());
  const std::string_view text(reinterpret_cast<const char*>(&header), sizeof header);
  for (const UniqueFd& outbox : outboxes_) RONDO_TRY(comm::send_packet(outbox.get(), text, fds));
  return {};
}

Result<std::vector<Pieces>> PieceExchange::receive() const {
  std::vector<Pieces> all;
  while (true) {
    auto packet = RONDO_TRY(comm::receive_packet(inbox_.get()));
    if (!packet) return all;
    if (packet->text.size() != sizeof(PieceHeader)) continue;
    Pieces& pieces = all.emplace_back();
    std::memcpy(&pieces.header, packet->text.data(), sizeof pieces.header);
    pieces.descriptors = std::move(packet->fds);
    pieces.is_cut_off = packet->has_lost_fds;
  }
}

}  // namespace rondo::device
