#include "transport/cuda_ipc/nvml.hpp"

#include <dlfcn.h>

namespace rondo::transport::cuda_ipc {
namespace {

// NVML's C interface as its documentation gives it ("NVML API Reference Guide", nvmlInit_v2,
// nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetP2PStatus); 0 is success everywhere, and "ok" as a
// status. No header of it comes with what rondo needs otherwise.
using Device = void*;
constexpr int kNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK

struct Nvml {
  int (*init)() = nullptr;
  int (*handle)(const char* bus, Device*) = nullptr;
  int (*p2p_status)(Device, Device, int index, int* status) = nullptr;
  bool works = false;

  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;  // it stays open: others may use it too
    init = reinterpret_cast<decltype(init)>(dlsym(library, "nvmlInit_v2"));
    handle = reinterpret_cast<decltype(handle)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    p2p_status = reinterpret_cast<decltype(p2p_status)>(dlsym(library, "nvmlDeviceGetP2PStatus"));
    works = init != nullptr && handle != nullptr && p2p_status != nullptr && init() == 0;
  }
};

}  // namespace

bool nvml_sees_nvlink(const char* device, const char* peer) {
  static const Nvml nvml;
  if (!nvml.works) return false;
  Device first = nullptr, second = nullptr;
  if (nvml.handle(device, &first) != 0 || nvml.handle(peer, &second) != 0) return false;
  int status = -1;
  return nvml.p2p_status(first, second, kNvlink, &status) == 0 && status == 0;
}

}  // namespace rondo::transport::cuda_ipc
