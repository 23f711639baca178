// What only CUDA's driver knows or can do. Its functions are looked up in the library that the
// runtime has opened, so that nothing is linked to it.
#pragma once

#include "rondo/status.hpp"

namespace rondo::transport::cuda_ipc {

/// The driver's function of that name, or null.
void* driver_function(const char* name);
template <class Function>
Function find_driver_function(const char* name) {
  return reinterpret_cast<Function>(driver_function(name));
}

/// Of a CUresult: `what` was tried.
Status driver_status(int code, const char* what);

}  // namespace rondo::transport::cuda_ipc
