// Which devices UCX may use, by what the kernel says of this host.
#pragma once

#include <string>

namespace rondo::transport::ucx {

/// Where the kernel lists devices of InfiniBand's kind, RoCE's included.
inline constexpr const char* kRdmaDevices = "/sys/class/infiniband";

/// Whether this host has such a device.
bool has_rdma();

/// For UCX_NET_DEVICES: the network interface, and the RDMA ports that are active, of all devices or
/// only of that one with the interface: "eth0,mlx5_0:1". Empty for no interface: UCX decides.
std::string with_rdma(const std::string& interface, bool all_devices,
                      const std::string& devices = kRdmaDevices);

/// Whether UCX can use nothing but TCP on these devices, or, if empty, on this host.
bool is_tcp_only(const std::string& names);

}  // namespace rondo::transport::ucx
