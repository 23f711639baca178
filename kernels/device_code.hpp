// Marks device code where nvcc compiles it; elsewhere the function is an ordinary one, which tests
// run without a GPU. Not for both at once: such a function could not call device-only functions.
// constexpr functions need no mark: nvcc compiles them for both (cmake/cuda.cmake).
#pragma once

#if defined(__CUDACC__)
#define RONDO_DEVICE __device__
#else
#define RONDO_DEVICE
#endif
