// The driver's virtual memory management: memory of cuMemCreate() that cuMemMap() has put at an
// address, shared with other processes by file descriptors. As CudaCalls has it; no policy.
#pragma once

#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::transport::cuda_ipc::mapped_memory {

Result<Allocation> piece_at(const std::byte* memory);
Result<int> export_piece(const std::byte* memory);
Result<std::byte*> reserve(size_t bytes);
Status free_reserved(std::byte* memory, size_t bytes);
Status map_piece(std::byte* at, size_t bytes, int descriptor, int device);
Status unmap_piece(std::byte* at, size_t bytes);

}  // namespace rondo::transport::cuda_ipc::mapped_memory
