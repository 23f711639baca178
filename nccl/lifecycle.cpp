// The end of communicators, and what they say of themselves.
#include <algorithm>
#include <cstring>

#include "nccl/comm.hpp"

namespace rondo::nccl {
namespace {

/// A rank with no call and no kernel under way leaves quietly, as NCCL's abort is local, and PyTorch
/// aborts where a program ends without destroying its groups: peers that need the rank learn that it
/// has left. Otherwise its own calls, or kernels, have to be ended first.
Status abort(const Comm& comm) {
  retract(comm);
  if (comm->is_creating()) return {};  // the thread that creates it drops it
  std::unique_lock lock(comm->calls, std::try_to_lock);
  if (!lock || !comm->is_idle()) {
    comm->abort("rank " + std::to_string(comm->rank) + " called ncclCommAbort");
    if (!lock) lock.lock();
  }
  comm->leave();
  return {};
}

Status destroy(const Comm& comm) {
  comm->await();
  retract(comm);
  const std::lock_guard lock(comm->calls);
  comm->leave();
  return {};
}

Status finalize(const Comm& comm) {
  if (comm->revoked)
    return unsupported("ncclCommFinalize: the communicator was revoked; destroy it");
  RONDO_TRY(comm->use("ncclCommFinalize", [](Communicator& on) { return on.finish(); }));
  comm->finalized = true;
  return {};
}

Status revoke(const Comm& comm) {
  comm->revoked = true;
  comm->abort("rank " + std::to_string(comm->rank) + " called ncclCommRevoke");
  const std::lock_guard lock(comm->calls);  // its calls have ended
  return {};
}

/// Fills the caller's part of the struct.
Status query(const Comm& comm, ncclCommProperties_t* into) {
  const char* const call = "ncclCommQueryProperties";
  RONDO_TRY(check_pointer(into, call, "the ncclCommProperties_t"));
  if (into->magic != kNcclMagic || into->size < offsetof(ncclCommProperties_t, rank)) {
    return refuse(std::string(call) + ": not initialised with NCCL_COMM_PROPERTIES_INITIALIZER");
  }
  ncclCommProperties_t known{};
  known.size = into->size;
  known.magic = into->magic;
  known.version = into->version;
  known.rank = comm->rank;
  known.nRanks = comm->size;
  known.cudaDev = known.nvmlDev = comm->device;
  known.nLsaTeams = comm->size;
  known.ginMinStride = 1;
  std::memcpy(into, &known, std::min(into->size, sizeof known));
  return {};
}

Status statistics(const Comm& comm, ncclCommMemStat_t stat, uint64_t* value) {
  RONDO_TRY(check_pointer(value, "ncclCommMemStats", "the value"));
  if (comm->device >= 0)
    return unsupported("ncclCommMemStats: rondo does not count a GPU's memory");
  if (stat < ncclStatGpuMemSuspend || stat > ncclStatGpuMemTotal) {
    return refuse("ncclCommMemStats: unknown ncclCommMemStat_t " + std::to_string(stat));
  }
  const bool counts = stat == ncclStatGpuMemPersist || stat == ncclStatGpuMemTotal;
  return comm->use("ncclCommMemStats", [&](Communicator& on) -> Status {
    *value = counts ? on.stats().shared_bytes : 0;
    return {};
  });
}

/// Writes one number of a communicator that is there.
ncclResult_t tell(const char* call, ncclComm_t handle, int* into, int ncclComm::*number) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(into, call, "the result"));
    *into = RONDO_TRY(find_ready(handle, call)).get()->*number;
    return {};
  });
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's
using rondo::Status;

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return guarded(
      [&]() -> Status { return finalize(RONDO_TRY(find_ready(comm, "ncclCommFinalize"))); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return guarded([&]() -> Status { return destroy(RONDO_TRY(find(comm, "ncclCommDestroy"))); });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return guarded([&]() -> Status { return abort(RONDO_TRY(find(comm, "ncclCommAbort"))); });
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  return guarded([&]() -> Status {
    const Comm found = RONDO_TRY(find_ready(comm, "ncclCommRevoke"));
    if (flags != 0)
      return refuse("ncclCommRevoke: the flags are " + std::to_string(flags) + ", not 0");
    return revoke(found);
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(error, "ncclCommGetAsyncError", "the result"));
    const Comm found = RONDO_TRY(find(comm, "ncclCommGetAsyncError"));
    *error = found->is_creating() ? ncclInProgress : result_of(found->failure().code());
    return {};
  });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return tell("ncclCommCount", comm, count, &ncclComm::size);
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return tell("ncclCommUserRank", comm, rank, &ncclComm::rank);
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return tell("ncclCommCuDevice", comm, device, &ncclComm::device);
}

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  return guarded([&]() -> Status {
    return query(RONDO_TRY(find_ready(comm, "ncclCommQueryProperties")), properties);
  });
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return guarded([&]() -> Status {
    return statistics(RONDO_TRY(find_ready(comm, "ncclCommMemStats")), stat, value);
  });
}

ncclResult_t ncclGetVersion(int* version) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(version, "ncclGetVersion", "the version"));
    *version = NCCL_VERSION_CODE;
    return {};
  });
}

// Every rank is a team of its own for device code (Lsa, Cft), so ranks of one rail are all ranks.
ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
  ncclTeam_t team = {1, 0, 1};
  (void)guarded([&]() -> Status {
    const Comm found = RONDO_TRY(find_ready(comm, "ncclTeamWorld"));
    team = {found->size, found->rank, 1};
    return {};
  });
  return team;
}
ncclTeam_t ncclTeamRail(ncclComm_t comm) { return ncclTeamWorld(comm); }
ncclTeam_t ncclTeamLsa(ncclComm_t /*comm*/) { return {1, 0, 1}; }
ncclTeam_t ncclTeamCft(ncclComm_t /*comm*/, int /*mode*/) { return {1, 0, 1}; }
ncclTeam_t ncclTeamCftMultimem(ncclComm_t /*comm*/) { return {1, 0, 1}; }
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return ncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}
int ncclTeamRankToLsa(ncclComm_t /*comm*/, ncclTeam_t team, int rank) {
  return (rank - team.rank) * team.stride;
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclCommFinalize")]] decltype(ncclCommFinalize) pncclCommFinalize;
[[gnu::alias("ncclCommDestroy")]] decltype(ncclCommDestroy) pncclCommDestroy;
[[gnu::alias("ncclCommAbort")]] decltype(ncclCommAbort) pncclCommAbort;
[[gnu::alias("ncclCommRevoke")]] decltype(ncclCommRevoke) pncclCommRevoke;
[[gnu::alias("ncclCommGetAsyncError")]] decltype(ncclCommGetAsyncError) pncclCommGetAsyncError;
[[gnu::alias("ncclCommCount")]] decltype(ncclCommCount) pncclCommCount;
[[gnu::alias("ncclCommUserRank")]] decltype(ncclCommUserRank) pncclCommUserRank;
[[gnu::alias("ncclCommCuDevice")]] decltype(ncclCommCuDevice) pncclCommCuDevice;
[[gnu::alias(
    "ncclCommQueryProperties")]] decltype(ncclCommQueryProperties) pncclCommQueryProperties;
[[gnu::alias("ncclCommMemStats")]] decltype(ncclCommMemStats) pncclCommMemStats;
[[gnu::alias("ncclGetVersion")]] decltype(ncclGetVersion) pncclGetVersion;
[[gnu::alias("ncclTeamWorld")]] decltype(ncclTeamWorld) pncclTeamWorld;
[[gnu::alias("ncclTeamRail")]] decltype(ncclTeamRail) pncclTeamRail;
[[gnu::alias("ncclTeamLsa")]] decltype(ncclTeamLsa) pncclTeamLsa;
[[gnu::alias("ncclTeamCft")]] decltype(ncclTeamCft) pncclTeamCft;
[[gnu::alias("ncclTeamCftMultimem")]] decltype(ncclTeamCftMultimem) pncclTeamCftMultimem;
[[gnu::alias("ncclTeamRankToWorld")]] decltype(ncclTeamRankToWorld) pncclTeamRankToWorld;
[[gnu::alias("ncclTeamRankToLsa")]] decltype(ncclTeamRankToLsa) pncclTeamRankToLsa;
}
#pragma GCC visibility pop
