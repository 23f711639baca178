// Marks what is device code where nvcc compiles it, and an ordinary function elsewhere, where tests
// walk it without a GPU. Not for the host at the same time: such a function could call nothing that
// the device alone has. Functions that are constexpr need no mark: nvcc is told to take those for
// both (cmake/cuda.cmake).
#pragma once

#if defined(__CUDACC__)
#define RONDO_DEVICE __device__
#else
#define RONDO_DEVICE
#endif
