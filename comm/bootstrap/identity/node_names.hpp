// Hosts' names in the notations of launchers, as pure functions of text.
#pragma once

#include <string>
#include <vector>

namespace rondo::comm {

/// The first host of Slurm's compressed lists: "node[003-005,7],other" begins with node003, and
/// "rack[1-2]node[3-4]" with rack1node3. Empty: no such list.
std::string first_host(const std::string& list);

/// The addresses in Open MPI's contact strings, as in
/// "1389101056.0;tcp://10.0.0.1,192.168.0.1:42591;tcp6://[fd77::1]:40063"; without loopback.
std::vector<std::string> contact_addresses(const std::string& contact);

/// A port from `first` to `last` that follows from `job`.
int port_for(const std::string& job, int first, int last);

}  // namespace rondo::comm
