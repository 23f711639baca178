// Two processes as if on two hosts: each moves into a network namespace of its own, and a pair of
// virtual network devices joins them. Everything vanishes with the processes.
#pragma once

#include <sys/types.h>

#include <string>

namespace rondo::transport::test {

inline constexpr const char* kCable = "rondo0";  // the device, in either namespace

/// Why this machine cannot do that, or "".
std::string why_no_cables();

// Steps, in this order; each returns "" or what failed. The processes wait for each other between.
/// Moves this process, which has one thread, into a new network namespace.
std::string leave_network();
/// On one side: makes the cable to the other process's namespace.
std::string lay_cable(pid_t other);
/// Gives this side's end the address 10.77.0.`number` and switches it on.
std::string take_address(int number);
/// Until both ends are on.
std::string await_carrier();

}  // namespace rondo::transport::test
