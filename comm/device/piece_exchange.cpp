#include "comm/device/piece_exchange.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/bootstrap/connection.hpp"

namespace rondo::device {

using transport::UniqueFd;

Result<std::unique_ptr<PieceExchange>> PieceExchange::open(comm::Bootstrap& bootstrap,
                                                           std::span<const uint64_t> processes) {
  std::unique_ptr<PieceExchange> made(new PieceExchange);
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return comm::system_status("socketpair", errno);
  }
  made->inbox_.reset(ends[0]);
  const UniqueFd other_end(ends[1]);
  auto all = RONDO_TRY(bootstrap.all_gather_fds(other_end.get()));
  made->ranks_ = all.size();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (processes[rank] == processes[static_cast<size_t>(bootstrap.rank())]) continue;
    made->outboxes_.push_back(std::move(all[rank]));
  }
  return made;
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
