#include "comm/bootstrap/share_segment.hpp"

#include <utility>

namespace rondo::comm {

Result<transport::Segment> share_segment(Bootstrap& bootstrap, const char* name,
                                         size_t least_bytes) {
  const size_t bytes = (least_bytes + 4095) / 4096 * 4096;
  Result<transport::Segment> made = transport::Segment{};
  const bool makes = bootstrap.is_first_on_host();
  if (makes) {
    made = transport::Segment::create(name, bytes);
    if (!made.ok()) return made;
  }
  auto fd = bootstrap.broadcast_fd(makes ? made->fd() : -1);
  if (!fd.ok()) return fd.status();
  return makes ? std::move(made) : transport::Segment::map(std::move(*fd), bytes);
}

}  // namespace rondo::comm
