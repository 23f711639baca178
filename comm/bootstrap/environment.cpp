// Which launcher's variables count, and the judgement of their values.
#include "comm/bootstrap/environment.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <strings.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "comm/bootstrap/unique_id.hpp"

namespace rondo::comm {
namespace {

/// The variables that one kind of launcher sets.
struct LauncherVariables {
  const char *rank, *world_size, *local_rank, *local_world_size;
};
constexpr LauncherVariables kTorch{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr LauncherVariables kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr LauncherVariables kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

Status invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

/// The variable's text; an empty one counts as absent.
std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

Result<int> parse_number(const std::string& name, const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    return invalid(name + " is \"" + text + "\": it must be a whole number from 0 to 2147483647");
  }
  return value;
}

/// The number in `name`, or `absent` where it is not set.
Result<int> number(const char* name, int absent) {
  auto text = variable(name);
  if (!text) return absent;
  return parse_number(name, *text);
}

Status check_range(const Identity& id, const std::string& rank_name, const std::string& size_name) {
  if (id.world_size == 0) return invalid(size_name + " is 0: there must be at least one rank");
  if (id.rank >= id.world_size) {
    return invalid(rank_name + " is " + std::to_string(id.rank) + " but " + size_name + " is " +
                   std::to_string(id.world_size) + ": ranks are 0 to " +
                   std::to_string(id.world_size - 1));
  }
  return {};
}

Status check_local(const Identity& id, const LauncherVariables& names) {
  const std::string local_size = std::to_string(id.local_world_size);
  if (id.local_world_size < 1 || id.local_world_size > id.world_size) {
    return invalid(std::string(names.local_world_size) + " is " + local_size + " but " +
                   names.world_size + " is " + std::to_string(id.world_size) +
                   ": it must be from 1 to that");
  }
  if (id.local_rank >= id.local_world_size) {
    return invalid(std::string(names.local_rank) + " is " + std::to_string(id.local_rank) +
                   " but " + names.local_world_size + " is " + local_size + ": it must be less");
  }
  if (id.local_world_size != id.world_size) {
    return Status(Code::kUnavailable, std::string(names.local_world_size) + " is " + local_size +
                                          " but " + names.world_size + " is " +
                                          std::to_string(id.world_size) +
                                          ": this build connects the ranks of one host only");
  }
  return {};
}

Status read_launcher(const LauncherVariables& names, Identity& id) {
  if (!variable(names.world_size)) {
    return invalid(std::string(names.rank) + " is " + *variable(names.rank) + " but " +
                   names.world_size + " is not set: set both or neither");
  }
  auto read = [](const char* name, int absent, int& into) -> Status {
    auto value = number(name, absent);
    if (value.ok()) into = *value;
    return value.status();
  };
  RONDO_RETURN_IF_ERROR(read(names.rank, 0, id.rank));
  RONDO_RETURN_IF_ERROR(read(names.world_size, 0, id.world_size));
  RONDO_RETURN_IF_ERROR(check_range(id, names.rank, names.world_size));
  RONDO_RETURN_IF_ERROR(read(names.local_world_size, id.world_size, id.local_world_size));
  RONDO_RETURN_IF_ERROR(read(names.local_rank, id.rank, id.local_rank));
  return check_local(id, names);
}

/// Whether `address` is a name or number of this host; a look at the interfaces, never at a name
/// server.
bool is_this_host(const std::string& address) {
  if (address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0) return true;
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) == 0) {
    const size_t own = strcspn(host, "."), theirs = strcspn(address.c_str(), ".");
    if (own > 0 && own == theirs && strncasecmp(host, address.c_str(), own) == 0) return true;
  }
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool found = false;
  for (const ifaddrs* i = interfaces; i != nullptr && !found; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    const void* bytes = nullptr;
    if (family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
    if (family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
    char text[INET6_ADDRSTRLEN];
    found = bytes != nullptr && inet_ntop(family, bytes, text, sizeof text) && address == text;
  }
  freeifaddrs(interfaces);
  return found;
}

Status check_master_address() {
  auto address = variable("MASTER_ADDR");
  if (!address || is_this_host(*address)) return {};
  return Status(Code::kUnavailable, "MASTER_ADDR is \"" + *address +
                                        "\", which is not this host: this build connects the ranks "
                                        "of one host only (use 127.0.0.1)");
}

/// A file name that cannot leave its directory.
std::string as_file_name(std::string text) {
  for (char& c : text) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  return text;
}

std::string directory_of_job(const std::string& job) {
  return variable("XDG_RUNTIME_DIR").value_or("/tmp") + "/rondo-" + std::to_string(geteuid()) +
         "/" + job;
}

/// The job's directory from MASTER_PORT; a restarted torchrun job gets another one.
Status directory_from_port(Identity& id) {
  RONDO_RETURN_IF_ERROR(check_master_address());
  auto port = variable("MASTER_PORT");
  if (!port) {
    return invalid(
        "the ranks have no place to meet: set Config::rendezvous, RONDO_RENDEZVOUS (a directory) "
        "or MASTER_PORT, the same on every rank");
  }
  auto value = parse_number("MASTER_PORT", *port);
  if (!value.ok()) return value.status();
  if (*value == 0 || *value > 65535) {
    return invalid("MASTER_PORT is " + *port + ": it must be from 1 to 65535");
  }
  std::string job = std::to_string(*value);
  if (auto restart = variable("TORCHELASTIC_RESTART_COUNT")) {
    job.append("-").append(as_file_name(*restart));
  }
  id.rendezvous = directory_of_job(job);
  return {};
}

Status read_explicit(const Config& config, Identity& id) {
  const std::string rank = "Config::rank is " + std::to_string(config.rank);
  const std::string size = "Config::world_size is " + std::to_string(config.world_size);
  if (config.rank < -1) return invalid(rank + ": it must not be negative (-1: environment)");
  if (config.world_size < -1) return invalid(size + ": it must be at least 1 (-1: environment)");
  if (config.world_size == -1) return invalid(rank + " but Config::world_size is not set");
  if (config.world_size == 0) return invalid(size + ": there must be at least one rank");
  if (config.rank == -1) return invalid(size + " but Config::rank is not set");
  id.rank = id.local_rank = config.rank;
  id.world_size = id.local_world_size = config.world_size;
  return check_range(id, "Config::rank", "Config::world_size");
}

/// The set of variables that speaks, and the directory name of its job (empty: MASTER_PORT says);
/// null: none is set.
const LauncherVariables* find_launcher(std::string& job) {
  if (variable("RANK")) return &kTorch;
  const std::string parent = std::to_string(getppid());
  if (variable(kOpenMpi.rank)) {
    auto space = variable("PMIX_NAMESPACE");
    job = space ? "pmix-" + as_file_name(*space) : "ompi-" + parent;
    return &kOpenMpi;
  }
  if (variable(kPmi.rank)) {
    job = "pmi-" + parent;
    return &kPmi;
  }
  return nullptr;
}

}  // namespace

Result<Identity> identity_from(const Config& config) {
  Identity id;
  std::string job;
  id.secret = variable("RONDO_SECRET").value_or("");
  const LauncherVariables* launcher = find_launcher(job);
  if (config.rank != -1 || config.world_size != -1) {
    RONDO_RETURN_IF_ERROR(read_explicit(config, id));
  } else if (launcher != nullptr) {
    RONDO_RETURN_IF_ERROR(read_launcher(*launcher, id));
    if (launcher == &kTorch) RONDO_RETURN_IF_ERROR(check_master_address());
  } else if (auto size = variable("WORLD_SIZE")) {
    return invalid("WORLD_SIZE is " + *size + " but RANK is not set: set both or neither");
  }
  if (!config.unique_id.empty()) RONDO_RETURN_IF_ERROR(meet_by_unique_id(config, id));
  if (id.world_size == 1 || !id.rendezvous.empty()) return id;

  if (!config.rendezvous.empty()) {
    id.rendezvous = config.rendezvous;
  } else if (auto directory = variable("RONDO_RENDEZVOUS")) {
    id.rendezvous = *directory;
  } else if (!job.empty()) {
    id.rendezvous = directory_of_job(job);
  } else {
    RONDO_RETURN_IF_ERROR(directory_from_port(id));
  }
  return id;
}

}  // namespace rondo::comm
