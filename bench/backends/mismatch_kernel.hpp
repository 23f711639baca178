// The kernel that compares results in a device's memory; absent in a build without CUDA, where
// nobody asks for it.
#pragma once

namespace rondo::bench {

/// For cudaLaunchKernel, in blocks of kMismatchThreads, as many as one likes. Its parameters: found
/// and expected (const void*), count and bytes of an element (size_t), and a Mismatch* to which it
/// adds what it finds.
const void* mismatch_kernel();
inline constexpr unsigned kMismatchThreads = 256;

}  // namespace rondo::bench
