// Judging and mapping a descriptor that anybody may have sent.
#include "comm/status/mapped_board.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/base/host_map.hpp"
#include "comm/base/printable.hpp"
#include "comm/base/process.hpp"
#include "comm/base/refuse.hpp"
#include "comm/health/process_state.hpp"

namespace rondo::status {
namespace {

using board::BoardHeader;
using board::BoardView;

constexpr uint32_t kMostRanks = 65535;
constexpr size_t kMostBytes = size_t{1} << 30;

/// Of this host: it said goodbye, its host's agent found it dead, or its process is no more.
bool has_ended(const BoardView& board, int rank) {
  const board::Observation seen = board.observe(rank);
  if (seen.life != board::Life::kAlive) return seen.life != board::Life::kAbsent;
  if (!base::proc_shows(seen.pid_namespace)) return false;
  const char letter = board::process_letter(seen.pid);
  return letter == '\0' || letter == 'Z';
}

Status not_a_board(const std::string& why) {
  return comm::refuse("this is no board of rondo's: " + why);
}

}  // namespace

void MappedBoard::Unmap::operator()(const std::byte* base) const {
  ::munmap(const_cast<std::byte*>(base), bytes);
}

Result<MappedBoard> MappedBoard::open(transport::UniqueFd fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return not_a_board(std::strerror(errno));
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return not_a_board("it is not sealed");
  const auto bytes = static_cast<size_t>(facts.st_size);
  if (bytes < BoardView::bytes_needed(1) || bytes > kMostBytes) {
    return not_a_board(fmt::format("it has {} bytes", bytes));
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return Status(Code::kSystem, fmt::format("mmap: {}", strerror(errno)));
  MappedBoard board;
  board.mapping_ = {static_cast<const std::byte*>(base), Unmap{bytes}};
  // Acquire: pairs with the release in Board's constructor; the rest of the header is whole then.
  const auto* header = static_cast<const BoardHeader*>(base);
  if (header->magic.load(std::memory_order_acquire) != BoardHeader::kMagic)
    return not_a_board("no header");
  if (header->version != BoardHeader::kVersion) {
    return not_a_board(fmt::format("it has version {}, this program reads {}", header->version,
                                   BoardHeader::kVersion));
  }
  const uint32_t ranks = header->ranks;  // once: whoever owns the memory may change it
  if (ranks < 1 || ranks > kMostRanks || BoardView::bytes_needed(static_cast<int>(ranks)) > bytes) {
    return not_a_board(fmt::format("{} ranks do not fit {} bytes", ranks, bytes));
  }
  board.ranks_ = static_cast<int>(ranks);
  board.host_ = static_cast<int>(std::min(header->host, kMostRanks));
  char name[sizeof(header->name)];
  std::memcpy(name, header->name, sizeof(name));
  board.name_ = base::printable({name, ::strnlen(name, sizeof(name))}, sizeof(name));
  board.id_ = facts.st_ino;
  board.fd_ = std::move(fd);
  return board;
}

bool MappedBoard::is_over() const {
  const BoardView all = view();
  const base::HostMap hosts = all.read_places().hosts;
  const int own_host = hosts.hosts() > 1 ? host_ : 0;
  for (int rank = 0; rank < all.ranks(); ++rank) {
    if (hosts.host_of(rank) == own_host && !has_ended(all, rank)) return false;
  }
  return true;
}

}  // namespace rondo::status
