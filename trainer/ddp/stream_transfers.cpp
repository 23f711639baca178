// See stream_transfers.hpp.
#include "trainer/ddp/stream_transfers.hpp"

namespace rondo::ddp {

StreamTransfers::StreamTransfers(Gpu& gpu, size_t buckets, bool gathers)
    : gpu_(gpu), gathers_(gathers) {
  for (size_t b = 0; b < buckets; ++b) sent_.push_back(gpu.create_event());
}

Status StreamTransfers::send(size_t bucket, const std::function<Status(Stream)>& enqueue) {
  using At = DdpTransferMark::At;
  mark(At::kReady, bucket, gpu_.compute());
  gpu_.hand_over();
  mark(At::kStarted, bucket, gpu_.communication());
  RONDO_TRY(gpu_.status());
  RONDO_TRY(enqueue(gpu_.communication()));
  mark(At::kEnded, bucket, gpu_.communication());
  gpu_.record_on_communication(sent_[bucket]);
  return gpu_.status();
}

Status StreamTransfers::receive(size_t bucket) {
  gpu_.compute_after(sent_[bucket]);
  return gpu_.status();
}

}  // namespace rondo::ddp
