// See rank_exchange.hpp.
#include "comm/bootstrap/session/rank_exchange.hpp"

#include "comm/base/bytes.hpp"
#include "comm/bootstrap/connection/wire.hpp"

namespace rondo::comm {

std::string pack_parcels(const std::vector<Parcel>& parcels) {
  base::ByteWriter packed;
  for (const Parcel& parcel : parcels) {
    packed.put(static_cast<uint32_t>(parcel.fds.size())).put_text(parcel.bytes);
  }
  return packed.take();
}

std::optional<std::vector<Parcel>> unpack_parcels(std::string_view payload, size_t count) {
  std::vector<Parcel> parcels(count);
  base::ByteReader reader(payload);
  for (Parcel& parcel : parcels) {
    const auto fd_count = reader.get<uint32_t>();
    if (fd_count > kMaxFdsPerFrame) return std::nullopt;
    parcel.fds.resize(fd_count);
    parcel.bytes = reader.get_text();
  }
  if (!reader.is_done()) return std::nullopt;
  return parcels;
}

}  // namespace rondo::comm
