// The kernel that compares results in device memory; a build without CUDA neither has nor uses it.
#pragma once

namespace rondo::bench {

/// For cudaLaunchKernel, in any number of blocks of kMismatchThreads. Parameters: found and
/// expected (const void*), count and bytes of an element (size_t), and a Mismatch* to which it adds
/// its findings.
const void* mismatch_kernel();
inline constexpr unsigned kMismatchThreads = 256;

}  // namespace rondo::bench
