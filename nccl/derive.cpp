// Communicators made of others: parts, those that are left, those that have grown.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "nccl/meeting.hpp"

namespace rondo::nccl {
namespace {

using Created = Result<std::optional<Communicator>>;

/// The settings of a new communicator: the parent's, unless the config says otherwise.
Result<CommSettings> settings_of(const ncclComm& parent, const ncclConfig_t* config,
                                 const char* call) {
  return read_config(config, {.blocking = parent.blocking, .name = {}}, call);
}

Result<CommCreation> split(const Comm& parent, int color, int key, const ncclConfig_t* config) {
  const CommSettings settings = RONDO_TRY(settings_of(*parent, config, "ncclCommSplit"));
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return refuse("ncclCommSplit: the color is " + std::to_string(color));
  }
  auto part = color == NCCL_SPLIT_NOCOLOR
                  ? nullptr
                  : std::make_shared<ncclComm>(parent->device, settings.blocking);
  const auto create = [=]() -> Created {
    return parent->use("ncclCommSplit", [&](Communicator& on) -> Created {
      if (!parent->revoked) return on.split(color, key, settings.name);
      Communicator left = RONDO_TRY(
          on.shrink(kRegroupPatience));  // works again; of the same ranks, unless some have died
      return left.split(color, key, settings.name);
    });
  };
  return CommCreation{std::move(part), parent, create};
}

/// The ranks that are not excluded, in order.
Result<std::vector<int>> members_of(const ncclComm& parent, const int* excluded, int count) {
  const char* const call = "ncclCommShrink";
  if (count < 1 || excluded == nullptr) return refuse(std::string(call) + ": no rank is excluded");
  std::vector<int> members(static_cast<size_t>(parent.size));
  std::iota(members.begin(), members.end(), 0);
  for (const int rank : std::vector<int>(excluded, excluded + count)) {
    if (rank < 0 || rank >= parent.size) {
      return refuse(std::string(call) + ": there is no rank " + std::to_string(rank) +
                    " to exclude, of " + std::to_string(parent.size));
    }
    if (rank == parent.rank) return refuse(std::string(call) + ": this rank excludes itself");
    std::erase(members, rank);
  }
  return members;
}

/// The parent works: the lowest member hears from the others, then makes an id and sends it to them.
/// Until all are here, a failure of the parent ends their waiting.
Created meet_members(Communicator& parent, const std::vector<int>& members) {
  ncclUniqueId id{};
  char here = 0;
  if (parent.rank() == members.front()) {
    for (size_t i = 1; i < members.size(); ++i) {
      RONDO_TRY(parent.recv(&here, 1, DataType::kUint8, members[i]));
    }
    RONDO_TRY(write_id(id));
    RONDO_TRY(parent.group_start());
    for (size_t i = 1; i < members.size(); ++i) {
      (void)parent.send(id.internal, sizeof id, DataType::kUint8, members[i]);
    }
    RONDO_TRY(parent.group_end());
  } else {
    RONDO_TRY(parent.send(&here, 1, DataType::kUint8, members.front()));
    RONDO_TRY(parent.recv(id.internal, sizeof id, DataType::kUint8, members.front()));
  }
  const auto own = std::find(members.begin(), members.end(), parent.rank()) - members.begin();
  const std::string text = RONDO_TRY(read_id(id, "ncclCommShrink"));
  return meet(
      {text, static_cast<int>(own), static_cast<int>(members.size()), -1, kRegroupPatience / 3});
}

/// The parent has failed: its ranks find out who is left.
Created regroup(Communicator& parent, const std::vector<int>& members) {
  Communicator left = RONDO_TRY(parent.shrink(kRegroupPatience));
  if (left.former_ranks() != members) {
    std::string sentence =
        "ncclCommShrink: these ranks are left, which are not all but the excluded ones:";
    for (const int rank : left.former_ranks()) sentence += " " + std::to_string(rank);
    return Status(Code::kPeerDied, std::move(sentence));
  }
  return std::optional<Communicator>(std::move(left));
}

Result<CommCreation> shrink(const Comm& parent, const int* excluded, int count,
                            const ncclConfig_t* config, int flags) {
  const CommSettings settings = RONDO_TRY(settings_of(*parent, config, "ncclCommShrink"));
  std::vector<int> members = RONDO_TRY(members_of(*parent, excluded, count));
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT) {
    return refuse("ncclCommShrink: unknown flags " + std::to_string(flags));
  }
  if (parent->device >= 0) return unsupported("ncclCommShrink: not for communicators on GPUs");
  if (flags == NCCL_SHRINK_ABORT) {
    parent->abort("rank " + std::to_string(parent->rank) +
                  " called ncclCommShrink with NCCL_SHRINK_ABORT");
  }
  auto comm = std::make_shared<ncclComm>(parent->device, settings.blocking);
  const auto create = [=, members = std::move(members)]() -> Created {
    return parent->use("ncclCommShrink", [&](Communicator& on) -> Created {
      if (on.status().ok()) {
        Created met = meet_members(on, members);
        if (met.ok() || on.status().ok()) return met;
      }
      return regroup(on, members);  // also where another rank has found the failure just now
    });
  };
  return CommCreation{std::move(comm), parent, create};
}

/// A rank that is there already: the one that has the id shares it.
Result<CommCreation> grow(const Comm& parent, int ranks, const ncclUniqueId* id,
                          const CommSettings& settings) {
  if (parent->device >= 0) return unsupported("ncclCommGrow: not for communicators on GPUs");
  ncclUniqueId given{};
  if (id != nullptr) given = *id;
  auto comm = std::make_shared<ncclComm>(parent->device, settings.blocking);
  const auto create = [=]() -> Created {
    return parent->use("ncclCommGrow", [&](Communicator& on) -> Created {
      ncclUniqueId shared{};
      RONDO_TRY(on.all_reduce(given.internal, shared.internal, sizeof shared, DataType::kUint8,
                              ReduceOp::kMax));
      return meet({RONDO_TRY(read_id(shared, "ncclCommGrow")), on.rank(), ranks, -1});
    });
  };
  return CommCreation{std::move(comm), parent, create};
}

Result<CommCreation> grow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank,
                          const ncclConfig_t* config) {
  const char* const call = "ncclCommGrow";
  if (comm == nullptr) {
    RONDO_TRY(check_pointer(id, call, "the id"));
    const CommSettings settings = RONDO_TRY(read_config(config, {}, call));
    const IdMeeting meeting{RONDO_TRY(read_id(*id, call)), rank, ranks, RONDO_TRY(this_device())};
    if (rank < 0 || rank >= ranks) {
      return refuse(std::string(call) + ": rank " + std::to_string(rank) + " of " +
                    std::to_string(ranks));
    }
    auto grown = std::make_shared<ncclComm>(meeting.device, settings.blocking);
    return CommCreation{std::move(grown), nullptr, [meeting] { return meet(meeting); }};
  }
  const Comm parent = RONDO_TRY(find_ready(comm, call));
  if (rank != -1 || ranks <= parent->size) {
    return refuse(std::string(call) +
                  ": a rank that is there already passes rank -1 and more ranks than " +
                  std::to_string(parent->size));
  }
  return grow(parent, ranks, id, RONDO_TRY(settings_of(*parent, config, call)));
}

/// begin() of what `make` makes of the communicator.
template <class Make>
ncclResult_t derive(const char* call, ncclComm_t* into, const Make& make) noexcept {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t thrown = guarded([&]() -> Status {
    const Status given = check_pointer(into, call, "the place of the communicator");
    if (given.ok()) *into = nullptr;
    result = given.ok() ? begin(make(), into) : spoil(given);
    return {};
  });
  return thrown == ncclSuccess ? result : thrown;
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  return derive("ncclCommSplit", part, [&]() -> rondo::Result<CommCreation> {
    return split(RONDO_TRY(find_ready(comm, "ncclCommSplit")), color, key, config);
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* left,
                            ncclConfig_t* config, int flags) {
  return derive("ncclCommShrink", left, [&]() -> rondo::Result<CommCreation> {
    return shrink(RONDO_TRY(find_ready(comm, "ncclCommShrink")), excluded, excluded_count, config,
                  flags);
  });
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  return guarded([&]() -> rondo::Status {
    RONDO_TRY(find_ready(comm, "ncclCommGetUniqueId"));
    RONDO_TRY(check_pointer(id, "ncclCommGetUniqueId", "the id"));
    return write_id(*id);
  });
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank,
                          ncclComm_t* grown, ncclConfig_t* config) {
  return derive("ncclCommGrow", grown, [&] { return grow(comm, ranks, id, rank, config); });
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclCommSplit")]] decltype(ncclCommSplit) pncclCommSplit;
[[gnu::alias("ncclCommShrink")]] decltype(ncclCommShrink) pncclCommShrink;
[[gnu::alias("ncclCommGetUniqueId")]] decltype(ncclCommGetUniqueId) pncclCommGetUniqueId;
[[gnu::alias("ncclCommGrow")]] decltype(ncclCommGrow) pncclCommGrow;
}
#pragma GCC visibility pop
