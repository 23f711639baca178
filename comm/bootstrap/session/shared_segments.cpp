#include "comm/bootstrap/session/shared_segments.hpp"

#include <utility>

namespace rondo::comm {

Status SharedSegments::add(const char* name, size_t least_bytes) {
  constexpr size_t kPage = 4096;
  bytes_.push_back((least_bytes + kPage - 1) / kPage * kPage);
  if (!ranks_.is_first_on_host()) return {};
  made_.push_back(RONDO_TRY(transport::Segment::create(name, bytes_.back())));
  return {};
}

std::vector<int> SharedSegments::fds() const {
  std::vector<int> fds;
  for (const transport::Segment& segment : made_) fds.push_back(segment.fd());
  return fds;
}

Result<std::vector<transport::Segment>> SharedSegments::take(std::vector<Parcel>& exchanged) {
  if (ranks_.is_first_on_host()) return std::move(made_);
  std::vector<transport::UniqueFd>& fds =
      exchanged[static_cast<size_t>(ranks_.local_ranks().front())].fds;
  if (fds.size() < bytes_.size()) {
    return Status(Code::kBootstrap, "the host's first rank sent no descriptor of a segment");
  }
  for (size_t i = 0; i < bytes_.size(); ++i) {
    made_.push_back(RONDO_TRY(transport::Segment::map(std::move(fds[i]), bytes_[i])));
  }
  fds.erase(fds.begin(), fds.begin() + static_cast<std::ptrdiff_t>(bytes_.size()));
  return std::move(made_);
}

}  // namespace rondo::comm
