// See group.hpp.
#include "nccl/group.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

namespace rondo::nccl {
namespace {

struct CallGroup {
  int depth = 0;
  std::vector<NcclCall> operations;
  std::vector<CommCreation> creations;
  Status error;  // the first of a call in it
};
thread_local CallGroup group;

/// Made at load, because there is no memory for it when it is needed.
const Status kNoMemory{Code::kResourceExhausted, "out of memory, or of threads"};

/// Creates one communicator, in this thread, which may be one of ours: nothing is thrown.
Status create(const CommCreation& creation) noexcept {
  auto made = [&]() noexcept -> Result<std::optional<Communicator>> {
    try {
      return creation.create();
    } catch (...) {
      return kNoMemory;
    }
  }();
  Status status = made.ok() ? Status() : made.status();
  if (creation.comm != nullptr) {
    creation.comm->created(made.ok() ? Result<Communicator>(std::move(**made)) : status);
  }
  return status;
}

/// Those of one parent, in order, in one thread.
struct Chain {
  std::vector<CommCreation> creations;
  Status status;  // the first failure

  bool blocks() const {
    return std::any_of(creations.begin(), creations.end(), [](const CommCreation& it) {
      return it.comm == nullptr || it.comm->blocking;
    });
  }
  void run() {
    for (const CommCreation& creation : creations) {
      Status one = create(creation);
      if (status.ok()) status = std::move(one);
    }
  }
};

std::vector<std::shared_ptr<Chain>> chains_of(const std::vector<CommCreation>& creations) {
  std::vector<std::shared_ptr<Chain>> chains;
  for (const CommCreation& creation : creations) {
    const auto same = std::find_if(chains.begin(), chains.end(), [&](const auto& chain) {
      return creation.parent != nullptr && chain->creations.front().parent == creation.parent;
    });
    const auto chain =
        same == chains.end() ? chains.emplace_back(std::make_shared<Chain>()) : *same;
    chain->creations.push_back(creation);
  }
  return chains;
}

/// Ends the wait for these communicators, in ncclCommDestroy() for example, with an error.
void fail(const std::vector<CommCreation>& creations) {
  for (const CommCreation& creation : creations) {
    if (creation.comm != nullptr) creation.comm->created(kNoMemory);
  }
}

enum class ThreadStart { kWaits, kRuns, kNever };

/// All at the same time, because one may wait for another: none begins before all have a thread.
/// Blocking ones have ended on return.
ncclResult_t create_all(const std::vector<CommCreation>& creations) {
  std::vector<std::shared_ptr<Chain>> chains;
  std::shared_ptr<std::atomic<ThreadStart>> start;
  const auto set_start = [&start](ThreadStart to) {
    if (!start) return;
    *start = to;
    start->notify_all();
  };
  std::vector<std::jthread> threads;
  try {
    chains = chains_of(creations);
    if (chains.size() != 1 || !chains.front()->blocks()) {
      start = std::make_shared<std::atomic<ThreadStart>>(ThreadStart::kWaits);
      threads.reserve(chains.size());
    }
    for (size_t i = 0; start && i < chains.size(); ++i) {
      threads.emplace_back([chain = chains[i], start] {  // it owns what it uses
        start->wait(ThreadStart::kWaits);
        if (*start == ThreadStart::kRuns) chain->run();
      });
    }
  } catch (const std::exception&) {  // out of threads, or of memory
    set_start(ThreadStart::kNever);
    fail(creations);
    return report(kNoMemory);
  }
  if (!start) {  // a single one, in this thread
    chains.front()->run();
    return report(chains.front()->status);
  }
  set_start(ThreadStart::kRuns);
  bool in_background = false;
  for (size_t i = 0; i < chains.size(); ++i) {
    if (chains[i]->blocks()) {
      threads[i].join();
    } else {
      threads[i].detach();
      in_background = true;
    }
  }
  for (const auto& chain : chains) {
    if (!chain->blocks()) continue;
    if (!chain->status.ok()) return report(chain->status);
  }
  return in_background ? ncclInProgress : ncclSuccess;
}

}  // namespace

bool in_group() { return group.depth > 0; }

Status submit(Result<NcclCall> operation) {
  if (!in_group()) return operation.ok() ? run(*operation) : operation.status();
  if (operation.ok()) {
    group.operations.push_back(std::move(*operation));
  } else if (group.error.ok()) {
    group.error = operation.status();
  }
  return operation.ok() ? Status() : operation.status();
}

ncclResult_t submit(std::vector<CommCreation> creations) {
  if (!in_group()) return create_all(creations);
  std::move(creations.begin(), creations.end(), std::back_inserter(group.creations));
  return ncclSuccess;
}

ncclResult_t spoil(const Status& status) {
  if (in_group() && group.error.ok()) group.error = status;
  return report(status);
}

namespace {

/// Ends the outermost group and takes what it holds.
Result<CallGroup> take(const char* call) {
  if (group.depth == 0) {
    return unsupported(std::string(call) + " without ncclGroupStart in this thread");
  }
  CallGroup taken;
  if (--group.depth == 0) std::swap(taken, group);
  return taken;
}

ncclResult_t end() {
  auto taken = take("ncclGroupEnd");
  if (!taken.ok()) return report(taken.status());
  if (!taken->error.ok()) {
    for (const CommCreation& it : taken->creations) {
      if (it.comm != nullptr) it.comm->created(taken->error);
    }
    return report(taken->error);
  }
  ncclResult_t created = ncclSuccess;
  if (!taken->creations.empty()) created = create_all(taken->creations);
  if (created != ncclSuccess && created != ncclInProgress) return created;
  const Status status = taken->operations.size() == 1
                            ? run(taken->operations.front())
                            : run(std::span<const NcclCall>(taken->operations));
  return status.ok() ? created : report(status);
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t thrown = guarded([&]() -> rondo::Status {
    result = end();
    return {};
  });
  return thrown == ncclSuccess ? result : thrown;
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* information) {
  return guarded([&]() -> rondo::Status {
    auto taken = RONDO_TRY(take("ncclGroupSimulateEnd"));
    for (const CommCreation& it : taken.creations) {
      if (it.comm != nullptr)
        it.comm->created(refuse("ncclGroupSimulateEnd: nothing of the group ran"));
    }
    RONDO_TRY(check_pointer(information, "ncclGroupSimulateEnd", "the ncclSimInfo_t"));
    if (information->magic != kNcclSimulationMagic || information->size < sizeof(ncclSimInfo_t)) {
      return refuse("ncclGroupSimulateEnd: not initialised with NCCL_SIM_INFO_INITIALIZER");
    }
    RONDO_TRY(std::move(taken.error));
    information->estimatedTime = static_cast<float>(RONDO_TRY(predict_us(taken.operations)));
    return {};
  });
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclGroupStart")]] decltype(ncclGroupStart) pncclGroupStart;
[[gnu::alias("ncclGroupEnd")]] decltype(ncclGroupEnd) pncclGroupEnd;
[[gnu::alias("ncclGroupSimulateEnd")]] decltype(ncclGroupSimulateEnd) pncclGroupSimulateEnd;
}
#pragma GCC visibility pop
