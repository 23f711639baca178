#include "transport/cuda_ipc/segments.hpp"

#include <string>
#include <utility>

namespace rondo::transport::cuda_ipc {

Result<std::unique_ptr<Segments>> Segments::create(std::shared_ptr<CudaCalls> calls,
                                                   const SegmentSizes& shape,
                                                   const DevicePlace& place, bool exports,
                                                   Stream stream) {
  CudaCalls& cuda = *calls;
  std::unique_ptr<Segments> made(new Segments(std::move(calls), shape));
  const size_t bytes = SegmentLayout(shape).bytes();
  std::byte* memory = RONDO_TRY(cuda.allocate(bytes));
  // From here on the destructor frees it.
  made->offer_ = {.place = place, .address = memory, .exported = false, .handle = {}};
  RONDO_TRY(cuda.clear(memory, bytes, stream));
  // Peers write there as soon as they know of it.
  RONDO_TRY(cuda.synchronize(stream));
  if (exports) {
    IpcHandle handle = RONDO_TRY(cuda.export_memory(memory));
    made->offer_.handle = handle;
    made->offer_.exported = true;
  }
  return made;
}

void Segments::let_go() {
  for (std::byte* memory : imported_) (void)cuda_->close_memory(memory);
  imported_.clear();
}

Segments::~Segments() {
  let_go();
  if (offer_.address != nullptr) (void)cuda_->release(offer_.address);
}

Result<std::byte*> Segments::reach(const Offer& peer, size_t rank) {
  const std::string name = "rank " + std::to_string(rank);
  if (peer.place.process != offer_.place.process) {
    if (!peer.exported) return Status(Code::kBootstrap, name + " offers no memory to processes");
    Result<std::byte*> memory = cuda_->import_memory(peer.handle);
    if (!memory.ok()) {
      return Status(memory.status().code(),
                    name + "'s GPU is out of reach: " + memory.status().message());
    }
    imported_.push_back(*memory);
    return memory;
  }
  if (peer.place.number != offer_.place.number) {
    bool can = RONDO_TRY(cuda_->can_access_peer(offer_.place.number, peer.place.number));
    if (!can) {
      return Status(Code::kUnavailable,
                    "GPU " + std::to_string(offer_.place.number) + " cannot access GPU " +
                        std::to_string(peer.place.number) + ", that of " + name);
    }
    RONDO_TRY(cuda_->enable_peer_access(peer.place.number));
  }
  return peer.address;
}

Status Segments::connect(std::span<const Offer> offers, uint32_t rank) {
  RONDO_CHECK(offers.size() == shape_.ranks && rank < shape_.ranks && bases_.empty(), "%zu offers",
              offers.size());
  for (size_t peer = 0; peer < offers.size(); ++peer) {
    if (offers[peer].address == nullptr) {
      bases_.push_back(nullptr);
      continue;
    }
    bases_.push_back(
        RONDO_TRY(peer == rank ? Result<std::byte*>(offer_.address) : reach(offers[peer], peer)));
  }
  return {};
}

}  // namespace rondo::transport::cuda_ipc
