// The one thing that only NVML knows: whether two GPUs are joined by NVLink. Its library comes with
// the driver, not with the toolkit, and is opened on the first use.
#pragma once

namespace rondo::transport::cuda_ipc {

/// By PCI bus numbers, as cudaDeviceGetPCIBusId() writes them. False also where NVML is missing or
/// does not answer.
bool nvml_sees_nvlink(const char* device, const char* peer);

}  // namespace rondo::transport::cuda_ipc
