// Precedence: the Config, then the launcher's variables, then one rank alone.
#include "comm/bootstrap/identity/environment.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/connection/interface.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/bootstrap/identity/launchers.hpp"
#include "comm/bootstrap/identity/pmix.hpp"
#include "comm/bootstrap/identity/unique_id.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo {
namespace comm {
namespace {

/// The file's content, without white space at its end.
Result<std::string> read_secret_file(const std::string& path) {
  const std::string name = "RONDO_SECRET_FILE is \"" + path + "\"";
  // O_NONBLOCK: a FIFO must not stop us.
  transport::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return refuse(name + ", which cannot be read: " + std::strerror(errno));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return refuse(name + ", which is no file");
  }
  if ((info.st_uid != geteuid() && info.st_uid != 0) || (info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", info.st_mode & 07777u);
    return refuse(name + ", which belongs to uid " + std::to_string(info.st_uid) +
                  " and has mode " + mode + ": others must not be able to read it (chmod 600)");
  }
  std::array<char, 4096> bytes;
  const ssize_t got = read(fd.get(), bytes.data(), bytes.size());
  std::string secret(bytes.data(), got > 0 ? static_cast<size_t>(got) : 0);
  while (!secret.empty() && isspace(static_cast<unsigned char>(secret.back()))) secret.pop_back();
  if (secret.empty()) return refuse(name + ", which holds no secret");
  return secret;
}

Result<std::string> read_secret() {
  if (auto secret = variable("RONDO_SECRET")) return *secret;
  auto path = variable("RONDO_SECRET_FILE");
  return path ? read_secret_file(*path) : std::string();
}

Status read_explicit(const Config& config, Identity& id) {
  const std::string rank = "Config::rank is " + std::to_string(config.rank);
  const std::string size = "Config::world_size is " + std::to_string(config.world_size);
  if (config.rank < -1) return refuse(rank + ": it must not be negative (-1: environment)");
  if (config.world_size < -1) return refuse(size + ": it must be at least 1 (-1: environment)");
  if (config.world_size == -1) return refuse(rank + " but Config::world_size is not set");
  if (config.world_size == 0) return refuse(size + ": there must be at least one rank");
  if (config.rank == -1) return refuse(size + " but Config::rank is not set");
  id.rank = id.local_rank = config.rank;
  id.world_size = id.local_world_size = config.world_size;
  return check_range({.rank = id.rank, .world_size = id.world_size}, "Config::rank",
                     "Config::world_size");
}

/// Why the ranks cannot all be on this host; empty: they can.
std::string find_other_host(const std::optional<Launched>& launched) {
  if (launched && !launched->elsewhere.empty()) return launched->elsewhere;
  const bool counts = !launched || variable("RANK");
  auto address = variable("MASTER_ADDR");
  if (counts && address && !is_this_host(*address)) {
    return "MASTER_ADDR is \"" + *address + "\", which is not this host";
  }
  return {};
}

/// XDG_RUNTIME_DIR may name a directory of the login node: job schedulers pass it on.
std::string runtime_directory() {
  auto directory = variable("XDG_RUNTIME_DIR");
  return directory && access(directory->c_str(), W_OK) == 0 ? *directory : "/tmp";
}

/// RONDO_RENDEZVOUS. rondo-run's own directory is for the ranks that it has started, not for ranks
/// of a launcher that such a rank starts: several ranks may start one.
std::string given_rendezvous(const std::optional<Launched>& launched) {
  std::string given = variable("RONDO_RENDEZVOUS").value_or("");
  const bool own = std::filesystem::path(given).filename().string().starts_with("rondo-run-");
  const bool by_rondo_run = variable("RANK") && !variable("TORCHELASTIC_RUN_ID");
  return own && launched && !by_rondo_run ? "" : given;
}

/// Why they may be on others, though nothing says so to the rank beside MASTER_ADDR: the ranks must
/// choose alike. Empty: they are not, or have no secret to meet elsewhere.
std::string may_be_elsewhere(const std::optional<Launched>& launched, bool has_secret) {
  const bool by_hand = !launched || (variable("RANK") && !variable("LOCAL_WORLD_SIZE"));
  const auto address = variable("MASTER_ADDR");
  if (!by_hand || !address || !has_secret || *address == "localhost") return {};
  const auto numeric = parse_address(*address, 0);
  if (numeric.ok() && is_loopback(*numeric)) return {};
  return "MASTER_ADDR is \"" + *address + "\" and LOCAL_WORLD_SIZE not set";
}

/// By an id that rank 0 makes and the launcher's PMIx server passes on.
Status meet_by_pmix(const Config& config, Identity& id) {
  if (id.rank == 0) {
    RONDO_TRY(pmix_publish([] {
      auto made = make_unique_id();
      return made.ok() ? *made : "rank 0: " + made.status().to_string();
    }));
  }
  auto passed = pmix_published(config.bootstrap_timeout);
  if (!passed.ok()) {
    return Status(Code::kBootstrap,
                  "rank 0 has published no place to meet: " + passed.status().message());
  }
  if (passed->starts_with("rank 0: ")) return {Code::kBootstrap, *passed};
  return meet_by_passed_id(*passed, id);
}

/// Where ranks of several hosts meet. `other_host` says why they are on several.
Result<std::string> derive_tcp(const std::string& other_host, bool has_secret) {
  auto address = rank_0_address();
  if (!address.ok()) return address.status();
  if (!address->empty() && has_secret) return kTcpScheme + *address;
  std::string missing;
  if (address->empty()) missing = "MASTER_ADDR, the name or address of rank 0's host";
  if (!has_secret) {
    missing += std::string(missing.empty() ? "" : ", and ") +
               "RONDO_SECRET_FILE, a file that only this user can read (mode 0600), with the same "
               "secret on every host; or the secret itself as RONDO_SECRET";
  }
  return Status(Code::kUnavailable,
                other_host + ": ranks of several hosts meet over TCP. Give every rank " + missing);
}

/// The rendezvous that follows from the launcher's variables.
Result<std::string> derive_rendezvous(const std::string& other_host, bool has_secret) {
  if (!other_host.empty()) return derive_tcp(other_host, has_secret);
  auto job = RONDO_TRY(job_name());
  if (job.empty()) {
    return refuse(
        "the ranks have no place to meet: set Config::rendezvous, RONDO_RENDEZVOUS (a directory, "
        "or tcp://HOST:PORT) or MASTER_PORT to the same value on all of them");
  }
  return runtime_directory() + "/rondo-" + std::to_string(geteuid()) + "/" + job;
}

}  // namespace

Result<Identity> identity_from(const Config& config) {
  Identity id;
  std::optional<Launched> launched;
  if (config.rank != -1 || config.world_size != -1) {
    RONDO_TRY(read_explicit(config, id));
  } else {
    launched = RONDO_TRY(read_launcher());
    if (launched) {
      const Place& place = launched->place;
      id.rank = place.rank;
      id.world_size = place.world_size;
      id.local_rank = place.local_rank;
      id.local_world_size = place.local_world_size;
      id.by_launcher = true;
      id.job = job_id();
    }
  }
  if (id.world_size == 1 && config.unique_id.empty()) return id;

  id.secret = RONDO_TRY(read_secret());
  if (!config.unique_id.empty()) RONDO_TRY(meet_by_unique_id(config, id));
  if (id.world_size == 1 || !id.rendezvous.empty()) return id;
  id.rendezvous = !config.rendezvous.empty() ? config.rendezvous : given_rendezvous(launched);
  if (is_tcp(id.rendezvous)) return id;
  const bool settled = !id.rendezvous.empty();
  if (settled && !launched) return id;
  std::string other_host = find_other_host(launched);
  if (settled && other_host.empty()) return id;
  if (settled) {
    return Status(Code::kUnavailable, other_host + ", and the rendezvous is " + id.rendezvous +
                                          ", a directory, where ranks of one host meet: give "
                                          "RONDO_RENDEZVOUS=tcp://HOST:PORT, with rank 0's host");
  }
  if (launched && launched->by_pmix && !other_host.empty()) {
    RONDO_TRY(meet_by_pmix(config, id));
    return id;
  }
  if (other_host.empty()) other_host = may_be_elsewhere(launched, !id.secret.empty());
  id.rendezvous = RONDO_TRY(derive_rendezvous(other_host, !id.secret.empty()));
  return id;
}

}  // namespace comm

Result<std::optional<Place>> place_from_launcher() {
  return base::guarded([]() -> Result<std::optional<Place>> {
    auto launched = RONDO_TRY(comm::read_launcher());
    if (!launched) return std::optional<Place>();
    return std::optional<Place>(launched->place);
  });
}

}  // namespace rondo
