// See launchers.hpp.
#include "comm/bootstrap/identity/launchers.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <sstream>

#include "comm/bootstrap/connection/interface.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/bootstrap/identity/ancestors.hpp"
#include "comm/bootstrap/identity/node_names.hpp"
#include "comm/bootstrap/identity/pmix.hpp"

namespace rondo::comm {
namespace {

/// A file name that cannot leave its directory.
std::string as_file_name(std::string text) {
  for (char& c : text) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  return text;
}

/// "NAME-VALUE-VALUE" of the variables that are set, or nothing when the first is not.
std::string joined(std::string name, std::initializer_list<const char*> variables) {
  for (const char* each : variables) {
    auto text = variable(each);
    if (!text && each == *variables.begin()) return {};
    if (text) name.append("-").append(as_file_name(*text));
  }
  return name;
}

Result<int> master_port() {
  auto port = variable("MASTER_PORT");
  if (!port) return 0;
  auto value = parse_number("MASTER_PORT", *port);
  if (value.ok() && (*value == 0 || *value > 65535)) {
    return refuse("MASTER_PORT is " + *port + ": it must be from 1 to 65535");
  }
  return value;
}

/// The launcher: the nearest ancestor that runs `program`, or whose initial environment lacks this
/// process's `rank` and `size`. Shells and wrappers in between have them; a launcher that is itself
/// a rank of an outer job, even the same rank of as many, runs `program`. An ancestor of another
/// user, whose environment is not readable, is not a rank of this job.
pid_t launcher_pid(const char* rank, const char* size, const std::string& program = {}) {
  const std::vector<std::string> ours = {std::string(rank) + "=" + variable(rank).value_or(""),
                                         std::string(size) + "=" + variable(size).value_or("")};
  pid_t pid = getppid();
  while (pid > 1) {
    const auto process = read_process(pid);
    const bool runs_it = process && process->name == program;
    if (runs_it || !was_started_with(pid, ours)) return pid;
    if (!process) return getppid();
    pid = process->parent;
  }
  return pid;
}

std::string torch_job() {
  return joined(variable("TORCHELASTIC_RUN_ID") ? "torch" : "port",
                {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
}
std::string pmix_job() { return joined("pmix", {"PMIX_NAMESPACE"}); }
std::string open_mpi_job() {
  std::string job = pmix_job();
  return job.empty()
             ? "ompi-" +
                   std::to_string(launcher_pid("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
             : job;
}
std::string pals_job() { return joined("pals", {"PALS_APID"}); }
std::string pmi_job() {
  return "pmi-" + std::to_string(launcher_pid("PMI_RANK", "PMI_SIZE", "hydra_pmi_proxy"));
}
std::string slurm_job() {
  return joined("slurm", {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"});
}

using Names = std::array<const char*, 2>;  // the first that is set counts
constexpr Names kSlurmSize = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

struct Launcher {
  const char* rank;
  Names world_size, local_rank, local_world_size;
  std::string (*job)();
  const char* sign = nullptr;  // must be set too
  const char* hint = "set both or neither";
};

// In order of precedence. Slurm and PMIx are last: an mpirun or torchrun inside one of their jobs
// takes precedence. PALS sets PMI_SIZE too, for Cray's MPI.
constexpr Launcher kLaunchers[] = {
    // rondo-run, torchrun, and whoever sets these by hand
    {.rank = "RANK",
     .world_size = {"WORLD_SIZE"},
     .local_rank = {"LOCAL_RANK"},
     .local_world_size = {"LOCAL_WORLD_SIZE"},
     .job = torch_job},
    // Open MPI's mpirun
    {.rank = "OMPI_COMM_WORLD_RANK",
     .world_size = {"OMPI_COMM_WORLD_SIZE"},
     .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .local_world_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     .job = open_mpi_job},
    // PALS's mpiexec (HPE Cray)
    {.rank = "PALS_RANKID",
     .world_size = {"PMI_SIZE", "PALS_SIZE"},
     .local_rank = {"PALS_LOCAL_RANKID"},
     .local_world_size = {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
     .job = pals_job,
     .hint = "this mpiexec does not say how many ranks there are; add --env PALS_SIZE=N to it"},
    // Hydra: MPICH's and Intel's mpiexec
    {.rank = "PMI_RANK",
     .world_size = {"PMI_SIZE"},
     .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
     .local_world_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
     .job = pmi_job},
    // srun. A batch script itself has SLURM_PROCID and SLURM_NTASKS too, but is no step.
    {.rank = "SLURM_PROCID",
     .world_size = kSlurmSize,
     .local_rank = {"SLURM_LOCALID"},
     .local_world_size = {},
     .job = slurm_job,
     .sign = "SLURM_STEP_ID"},
    // any other launcher with PMIx, which tells the world size to its clients only
    {.rank = "PMIX_RANK",
     .world_size = {"WORLD_SIZE"},
     .local_rank = {"PMIX_LOCAL_RANK"},
     .local_world_size = {"LOCAL_WORLD_SIZE"},
     .job = pmix_job,
     .hint = "PMIx leaves the number of ranks out of the environment; set WORLD_SIZE to it"},
};

bool is_slurm(const Launcher& launcher) { return launcher.job == slurm_job; }

/// The name that is set, or the first; null where the launcher has none.
const char* which(const Names& names) {
  for (const char* name : names) {
    if (name != nullptr && variable(name)) return name;
  }
  return names[0];
}

/// srun --mpi=pmi2 sets rank and size as Hydra does, but not the rank on the node.
bool is_slurms_pmi() {
  return variable("SLURM_STEP_ID") && !variable("MPI_LOCALRANKID") && !variable("PMI_LOCAL_RANK") &&
         variable("PMI_RANK") == variable("SLURM_PROCID") &&
         variable("PMI_SIZE") == variable(which(kSlurmSize));
}

bool is_there(const Launcher& launcher) {
  if (launcher.job == pmi_job && is_slurms_pmi()) return false;
  return variable(launcher.rank) && (launcher.sign == nullptr || variable(launcher.sign));
}

const Launcher* find_launcher() {
  for (const Launcher& launcher : kLaunchers) {
    if (is_there(launcher)) return &launcher;
  }
  return nullptr;
}

std::string shown(const char* name) { return std::string(name) + " is " + *variable(name); }

/// The variable of another launcher that contradicts `launcher`. Variables that srun has set, under
/// any name, describe the process that srun started, which may be an mpirun or torchrun.
Status find_contradiction(const Launcher& launcher) {
  std::optional<std::string> slurm_rank;
  for (const Launcher& each : kLaunchers) {
    if (is_slurm(each) && is_there(each)) slurm_rank = variable(each.rank);
  }
  for (const Launcher& other : kLaunchers) {
    if (&other == &launcher || is_slurm(other) || !is_there(other)) continue;
    if (variable(other.rank) == slurm_rank) continue;
    const char *ours = launcher.rank, *theirs = other.rank;
    if (variable(ours) == variable(theirs)) {
      ours = which(launcher.world_size);
      theirs = which(other.world_size);
      if (!variable(ours) || !variable(theirs) || variable(ours) == variable(theirs)) continue;
    }
    return refuse(shown(ours) + " but " + shown(theirs) +
                  ": two launchers contradict each other; take the variables of the one that did "
                  "not start this rank out of its environment, as in env -u " +
                  launcher.rank + " PROGRAM");
  }
  return {};
}

Status read_number(const char* name, int absent, int& into) {
  into = absent;
  auto text = name == nullptr ? std::nullopt : variable(name);
  if (!text) return {};
  auto value = parse_number(name, *text);
  if (value.ok()) into = *value;
  return value.status();
}

/// How many of Slurm's tasks are on this node, from a list such as "4(x2),3".
Result<int> slurm_local_size(int world_size) {
  const char* name = which({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  auto list = variable(name);
  if (!list) return world_size;
  int node = 0;
  RONDO_TRY(read_number("SLURM_NODEID", 0, node));
  std::istringstream parts(*list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t open = part.find("(x");
    if (open != std::string::npos && !part.ends_with(')')) break;
    auto tasks = RONDO_TRY(parse_number(name, part.substr(0, open)));
    int times = 1;
    if (open != std::string::npos) {
      times = RONDO_TRY(parse_number(name, part.substr(open + 2, part.size() - open - 3)));
    }
    if (node < times) return tasks;
    node -= times;
  }
  return refuse(shown(name) + ", which says nothing about SLURM_NODEID " +
                variable("SLURM_NODEID").value_or("0"));
}

Status check_local(const Launcher& names, const char* size_name, Launched& found) {
  const Place& place = found.place;
  const char* local_rank_name = which(names.local_rank);
  const char* local_size_name = which(names.local_world_size);
  if (local_size_name == nullptr) local_size_name = "SLURM_STEP_TASKS_PER_NODE";
  const std::string local_size =
      std::string(local_size_name) + " is " + std::to_string(place.local_world_size);
  const std::string size = std::string(size_name) + " is " + std::to_string(place.world_size);
  if (place.local_world_size < 1 || place.local_world_size > place.world_size) {
    return refuse(local_size + " but " + size + ": it must be from 1 to that");
  }
  if (place.local_rank >= place.local_world_size) {
    return refuse(std::string(local_rank_name) + " is " + std::to_string(place.local_rank) +
                  " but " + local_size + ": it must be less");
  }
  if (place.local_world_size != place.world_size) found.elsewhere = local_size + " but " + size;
  return {};
}

/// PMIx leaves the number of ranks out of the environment, but its server knows it.
Result<std::optional<Launched>> ask_pmix(const Launcher& names) {
  auto place = pmix_place();
  if (!place.ok()) {
    return Status(place.status().code(),
                  shown(names.rank) + " but WORLD_SIZE is not set: " + names.hint +
                      "; the launcher cannot be asked: " + place.status().message());
  }
  RONDO_TRY(check_range(*place, "the rank that PMIx gives", "the world size that PMIx gives"));
  Launched found{.place = *place, .elsewhere = {}, .by_pmix = true};
  if (place->local_world_size != place->world_size) {
    found.elsewhere = "of " + std::to_string(place->world_size) + " ranks PMIx has placed " +
                      std::to_string(place->local_world_size) + " on this host";
  }
  return std::optional<Launched>(found);
}

bool is_open_mpi(const Launcher& launcher) { return launcher.job == open_mpi_job; }

/// "10.0.0.1,[fd77::1]": names and addresses of rank 0's host; empty: unknown.
Result<std::string> rank_0_host(const Launcher* launcher) {
  auto host = variable("MASTER_ADDR");
  if (host) return bracketed(*host);
  if (launcher == nullptr) return std::string();
  if (is_slurm(*launcher)) {
    return first_host(variable(which({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})).value_or(""));
  }
  if (!is_open_mpi(*launcher)) return std::string();
  // Where mpirun runs: rank 0's host, unless the user has said otherwise.
  const auto addresses = contact_addresses(variable("OMPI_MCA_orte_hnp_uri").value_or(""));
  std::string list;
  bool is_here = false;
  for (const std::string& address : addresses) {
    is_here = is_here || is_this_host(address);
    list += (list.empty() ? "" : ",") + bracketed(address);
  }
  if (!list.empty() && !is_here && variable(launcher->rank) == "0") {
    return refuse("mpirun runs at " + list +
                  ", which is not the host of rank 0: name that host, as in mpirun -x "
                  "MASTER_ADDR=HOST");
  }
  return list;
}

/// MASTER_PORT + 1, else a port that follows from the job's name where that is the same on all
/// hosts.
Result<int> rank_0_port(const Launcher* launcher) {
  auto port = RONDO_TRY(master_port());
  if (port != 0 && (launcher == nullptr || !is_slurm(*launcher) || variable("MASTER_ADDR"))) {
    return port < 65535 ? port + 1 : port - 1;
  }
  auto range = RONDO_TRY(port_range());
  if (range.first == 0) range = {.first = 20'000, .last = 29'999};  // below Linux's ephemeral ones
  if (launcher != nullptr && is_slurm(*launcher)) {
    int job = 0, step = 0;
    RONDO_TRY(read_number("SLURM_JOB_ID", 0, job));
    RONDO_TRY(read_number("SLURM_STEP_ID", 0, step));
    // Jobs that run at the same time mostly have neighbouring numbers.
    return range.first + (job % 10'000 + step % 10'000) % (range.last - range.first + 1);
  }
  std::string job = pmix_job();
  if (job.empty()) job = pals_job();
  if (!job.empty() || variable("RONDO_PORTS")) return port_for(job, range.first, range.last);
  return 29'501;  // as if MASTER_PORT were torch's default
}

}  // namespace

Result<std::optional<Launched>> read_launcher() {
  const Launcher* names = find_launcher();
  if (names == nullptr) {
    auto size = variable("WORLD_SIZE");
    if (!size) return std::optional<Launched>();
    return refuse("WORLD_SIZE is " + *size + " but RANK is not set: set both or neither");
  }
  RONDO_TRY(find_contradiction(*names));
  const char* size_name = which(names->world_size);
  if (!variable(size_name) && names->job == pmix_job && variable("PMIX_NAMESPACE")) {
    return ask_pmix(*names);
  }
  if (!variable(size_name)) {
    return refuse(shown(names->rank) + " but " + size_name + " is not set: " + names->hint);
  }
  Launched found;
  Place& place = found.place;
  RONDO_TRY(read_number(names->rank, 0, place.rank));
  RONDO_TRY(read_number(size_name, 0, place.world_size));
  RONDO_TRY(check_range(place, names->rank, size_name));
  RONDO_TRY(read_number(which(names->local_world_size), place.world_size, place.local_world_size));
  if (is_slurm(*names)) {
    place.local_world_size = RONDO_TRY(slurm_local_size(place.world_size));
  }
  RONDO_TRY(read_number(which(names->local_rank), place.rank, place.local_rank));
  RONDO_TRY(check_local(*names, size_name, found));
  return std::optional<Launched>(found);
}

Status check_range(const Place& place, const std::string& rank_name, const std::string& size_name) {
  if (place.world_size == 0) return refuse(size_name + " is 0: there must be at least one rank");
  if (place.rank < place.world_size) return {};
  return refuse(rank_name + " is " + std::to_string(place.rank) + " but " + size_name + " is " +
                std::to_string(place.world_size) + ": ranks are 0 to " +
                std::to_string(place.world_size - 1));
}

Result<std::string> job_name() {
  // If a wrapper has set RANK from its launcher's variables, that launcher still names the job.
  const bool by_port = variable("RANK") && variable("MASTER_PORT");
  for (const Launcher& launcher : kLaunchers) {
    if (by_port || launcher.job == torch_job || !is_there(launcher)) continue;
    std::string job = launcher.job();
    if (!job.empty()) return job;
  }
  RONDO_TRY(master_port());
  return torch_job();
}

std::string job_id() {
  const Launcher* launcher = find_launcher();
  if (launcher == nullptr || launcher->job == pmi_job) return {};  // Hydra's pid is of one host
  // Each of torchrun's agents counts its own restarts.
  if (launcher->job == torch_job) return joined("torch", {"TORCHELASTIC_RUN_ID", "MASTER_PORT"});
  return launcher->job == open_mpi_job ? pmix_job() : launcher->job();
}

Result<std::string> rank_0_address() {
  const Launcher* launcher = find_launcher();
  auto host = rank_0_host(launcher);
  if (!host.ok() || host->empty()) return host;
  auto port = RONDO_TRY(rank_0_port(launcher));
  return *host + ":" + std::to_string(port);
}

std::vector<const char*> rank_variables() {
  std::vector<const char*> names = {"TORCHELASTIC_RUN_ID"};
  for (const Launcher& launcher : kLaunchers) {
    if (!is_slurm(launcher)) names.push_back(launcher.rank);
  }
  return names;
}

}  // namespace rondo::comm
