// Communicators of every kind of init: all meet by one unique id, whose text is rondo's.
#include <cstring>

#include "nccl/driver.hpp"
#include "nccl/group.hpp"
#include "nccl/meeting.hpp"

namespace rondo::nccl {

Status write_id(ncclUniqueId& into) {
  const std::string id = RONDO_TRY(make_unique_id());
  into = {};
  id.copy(into.internal, kUniqueIdChars);
  return {};
}

// Without an id a communicator would meet where the launcher says.
Result<std::string> read_id(const ncclUniqueId& id, const char* call) {
  const size_t size = strnlen(id.internal, sizeof id.internal);
  if (size > 0) return std::string(id.internal, size);
  return refuse(std::string(call) +
                ": the unique id is empty: broadcast rank 0's, of ncclGetUniqueId, to every rank");
}

Result<int> this_device() {
  if (RONDO_TRY(host_memory())) return -1;
  return driver::current_device();
}

Result<std::optional<Communicator>> meet(const IdMeeting& meeting) {
  Config config;
  config.rank = meeting.rank;
  config.world_size = meeting.size;
  config.unique_id = meeting.id;
  config.device = meeting.device;
  config.bootstrap_timeout = meeting.patience;
  config.max_channels = meeting.max_channels;
  config.wrapping_averages = true;  // as NCCL's
  return std::optional<Communicator>(RONDO_TRY(Communicator::create(config)));
}

ncclResult_t begin(std::vector<CommCreation> creations, ncclComm_t* handles) {
  for (size_t i = 0; i < creations.size(); ++i) {
    handles[i] = creations[i].comm == nullptr ? nullptr : publish(creations[i].comm);
  }
  const std::vector<CommCreation> begun = creations;
  const ncclResult_t result = submit(std::move(creations));
  if (result == ncclSuccess || result == ncclInProgress) return result;
  for (size_t i = 0; i < begun.size(); ++i) {
    if (begun[i].comm != nullptr) retract(begun[i].comm);
    handles[i] = nullptr;
  }
  return result;
}

ncclResult_t begin(Result<CommCreation> creation, ncclComm_t* handle) {
  if (!creation.ok()) return spoil(creation.status());
  return begin(std::vector<CommCreation>{std::move(*creation)}, handle);
}

namespace {

Result<CommCreation> init(const char* call, const ncclComm_t* into, const IdMeeting& meeting,
                          const ncclConfig_t* config) {
  RONDO_TRY(check_pointer(into, call, "the place of the communicator"));
  const CommSettings settings = RONDO_TRY(read_config(config, {}, call));
  if (meeting.size < 1 || meeting.rank < 0 || meeting.rank >= meeting.size) {
    return refuse(std::string(call) + ": rank " + std::to_string(meeting.rank) + " of " +
                  std::to_string(meeting.size));
  }
  auto comm = std::make_shared<ncclComm>(meeting.device, settings.blocking);
  IdMeeting settled = meeting;
  settled.max_channels = settings.max_channels;
  return CommCreation{std::move(comm), nullptr, [settled] { return meet(settled); }};
}

ncclResult_t init_rank(const char* call, ncclComm_t* into, int ranks, const ncclUniqueId& id,
                       int rank, const ncclConfig_t* config) {
  const auto text = read_id(id, call);
  if (!text.ok()) return spoil(text.status());
  const auto device = this_device();
  if (!device.ok()) return spoil(device.status());
  return begin(init(call, into, {*text, rank, ranks, *device}, config), into);
}

/// The ranks of one process, created beside each other.
ncclResult_t init_all(ncclComm_t* comms, int count, const int* devices) {
  const char* const call = "ncclCommInitAll";
  ncclUniqueId id;
  const auto own = this_device();  // an error where there is no driver
  if (!own.ok()) return spoil(own.status());
  if (const Status made = write_id(id); !made.ok()) return spoil(made);
  const auto text = read_id(id, call);
  if (!text.ok()) return spoil(text.status());
  std::vector<CommCreation> creations;
  for (int rank = 0; rank < count || rank == 0; ++rank) {
    const int device = *own < 0 ? -1 : devices == nullptr ? rank : devices[rank];
    auto creation = init(call, comms, {*text, rank, count, device}, nullptr);
    if (!creation.ok()) return spoil(creation.status());
    creations.push_back(std::move(*creation));
  }
  return begin(std::move(creations), comms);
}

/// Runs `body`, which returns NCCL's number; no exception leaves.
template <class Body>
ncclResult_t numbered(const Body& body) noexcept {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t thrown = guarded([&]() -> Status {
    result = body();
    return {};
  });
  return thrown == ncclSuccess ? result : thrown;
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return guarded([&]() -> rondo::Status {
    RONDO_TRY(check_pointer(id, "ncclGetUniqueId", "the id"));
    return write_id(*id);
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return numbered([&] { return init_rank("ncclCommInitRank", comm, ranks, id, rank, nullptr); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return numbered(
      [&] { return init_rank("ncclCommInitRankConfig", comm, ranks, id, rank, config); });
}

// Several ids spread NCCL's bootstrap over several roots. rondo's has one: the first.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  const char* const call = "ncclCommInitRankScalable";
  return numbered([&] {
    if (ids == nullptr || id_count < 1 || id_count > ranks) {
      return spoil(refuse(std::string(call) + ": " + std::to_string(id_count) + " ids for " +
                          std::to_string(ranks) + " ranks"));
    }
    return init_rank(call, comm, ranks, ids[0], rank, config);
  });
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  return numbered([&] { return init_all(comms, count, devices); });
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclGetUniqueId")]] decltype(ncclGetUniqueId) pncclGetUniqueId;
[[gnu::alias("ncclCommInitRank")]] decltype(ncclCommInitRank) pncclCommInitRank;
[[gnu::alias("ncclCommInitRankConfig")]] decltype(ncclCommInitRankConfig) pncclCommInitRankConfig;
[[gnu::alias(
    "ncclCommInitRankScalable")]] decltype(ncclCommInitRankScalable) pncclCommInitRankScalable;
[[gnu::alias("ncclCommInitAll")]] decltype(ncclCommInitAll) pncclCommInitAll;
}
#pragma GCC visibility pop
