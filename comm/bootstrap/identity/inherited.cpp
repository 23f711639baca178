// See inherited.hpp.
#include "comm/bootstrap/identity/inherited.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "comm/base/board_name.hpp"
#include "comm/base/printable.hpp"
#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/identity/ancestors.hpp"
#include "comm/bootstrap/identity/launchers.hpp"

namespace rondo::comm {
namespace {

/// Those that say which rank this is, of how many.
std::vector<std::string> own_rank_variables() {
  std::vector<std::string> names;
  for (const char* name : rank_variables()) {
    if (variable(name)) names.emplace_back(name);
  }
  if (variable("WORLD_SIZE")) names.emplace_back("WORLD_SIZE");
  return names;
}

/// "NAME=VALUE" of what tells this rank from those of any other job.
std::vector<std::string> identifying_entries() {
  std::vector<std::string> names = own_rank_variables();
  for (const char* name : {"SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID", "RONDO_RENDEZVOUS",
                           "RONDO_SECRET", "MASTER_PORT", "PMIX_NAMESPACE", "PALS_APID"}) {
    if (variable(name)) names.emplace_back(name);
  }
  std::vector<std::string> entries;
  for (const std::string& name : names) entries.push_back(name + "=" + *variable(name.c_str()));
  return entries;
}

struct Forebear {
  pid_t pid = 0;
  std::string name{};
  bool has_communicator = false;
};

bool has_board(pid_t pid) {
  const std::string mapped = std::string("/memfd:") + base::kBoardName;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(mapped) != std::string::npos) return true;
  }
  return false;
}

/// The nearest process above this one that was started as the same rank of the same job and has a
/// communicator. Without a communicator: the nearest one, such as a shell around the rank.
std::optional<Forebear> find_forebear() {
  constexpr int kMost = 64;
  const std::vector<std::string> entries = identifying_entries();
  std::optional<Forebear> nearest;
  pid_t pid = getppid();
  for (int i = 0; i < kMost && pid > 1; ++i) {
    const auto process = read_process(pid);
    if (!process || process->name == "hydra_pmi_proxy" || !was_started_with(pid, entries)) break;
    Forebear found{
        .pid = pid, .name = base::printable(process->name, 32), .has_communicator = has_board(pid)};
    if (found.has_communicator) return found;
    if (!nearest) nearest = std::move(found);
    pid = process->parent;
  }
  return nearest;
}

}  // namespace

std::string inherited_remedy() {
  return fmt::format(
      "start a program that is not part of this job with rondo-run -n 1 -- PROGRAM, or without "
      "the rank's variables: env -u {} PROGRAM",
      fmt::join(own_rank_variables(), " -u "));
}

InheritedRank::InheritedRank(const Identity& identity, std::chrono::milliseconds timeout,
                             bool applies)
    : rank_(identity.rank), timeout_(timeout), applies_(applies && identity.by_launcher) {
  if (applies_) at_ = std::chrono::steady_clock::now() + timeout / 2;
}

Status InheritedRank::check(Time now) {
  if (!at_ || now < *at_) return {};
  at_.reset();
  const auto forebear = find_forebear();
  if (!forebear || !forebear->has_communicator) return {};
  return {Code::kBootstrap,
          fmt::format("pid {} waits for other ranks as rank {}, but pid {} ({}), which has started "
                      "it, is rank {} of this job and has a communicator: pid {} has inherited "
                      "that rank's variables, and the others have not come within {}; {}",
                      getpid(), rank_, forebear->pid, forebear->name, rank_, getpid(),
                      name_duration(timeout_ / 2), inherited_remedy())};
}

std::string InheritedRank::hint() const {
  if (!applies_) return {};
  const auto forebear = find_forebear();
  if (!forebear) return {};
  return fmt::format(
      "; pid {} was started by pid {} ({}), which has the same rank variables: if pid {} is or was "
      "rank {} itself, {}",
      getpid(), forebear->pid, forebear->name, forebear->pid, rank_, inherited_remedy());
}

}  // namespace rondo::comm
