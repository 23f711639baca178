// See operation.hpp.
#include "nccl/operation.hpp"

#include <algorithm>
#include <functional>
#include <map>

namespace rondo::nccl {
namespace {

/// The blocking form.
Status call(Communicator& on, const NcclCall& o) {
  const Call& c = o.call;
  if (o.kind == NcclCall::CallKind::kSend) return on.send(c.in, c.count, c.type, c.root, o.options);
  if (o.kind == NcclCall::CallKind::kRecv)
    return on.recv(c.out, c.count, c.type, c.root, o.options);
  return on.run(c, o.options);
}

/// The asynchronous form.
Work start(Communicator& on, const NcclCall& o) {
  const Call& c = o.call;
  if (o.kind == NcclCall::CallKind::kSend) {
    return on.send_async(c.in, c.count, c.type, c.root, o.options);
  }
  if (o.kind == NcclCall::CallKind::kRecv) {
    return on.recv_async(c.out, c.count, c.type, c.root, o.options);
  }
  return on.start(c, o.options);
}

/// The operations of one communicator in a group, in the order of their calls.
struct CommPart {
  ncclComm* comm;
  std::vector<const NcclCall*> operations;

  Communicator& communicator() const { return comm->communicator(); }
};

/// In the order of each communicator's first call, which is the same on all ranks, as NCCL demands:
/// on a stream that several share, ranks with different orders would wait for each other.
std::vector<CommPart> parts_of(std::span<const NcclCall> operations) {
  std::vector<CommPart> parts;
  std::map<const ncclComm*, size_t> places;
  for (const NcclCall& operation : operations) {
    const auto [place, is_first] = places.emplace(operation.comm.get(), parts.size());
    if (is_first) parts.push_back({operation.comm.get(), {}});
    parts[place->second].operations.push_back(&operation);
  }
  return parts;
}

/// In the order of addresses: threads with groups over the same communicators do not wait for each
/// other.
std::vector<std::unique_lock<std::mutex>> lock(std::span<const CommPart> parts) {
  std::vector<ncclComm*> comms;
  for (const CommPart& part : parts) comms.push_back(part.comm);
  std::sort(comms.begin(), comms.end(), std::less<>());
  std::vector<std::unique_lock<std::mutex>> locks;
  for (ncclComm* comm : comms) locks.emplace_back(comm->calls);
  return locks;
}

/// rondo's group has one stream: a part of several is as many groups as its stream changes.
Status enqueue(const CommPart& part) {
  Communicator& on = part.communicator();
  for (size_t i = 0; i < part.operations.size();) {
    void* const stream = part.operations[i]->options.stream;
    RONDO_TRY(on.group_start());
    for (; i < part.operations.size() && part.operations[i]->options.stream == stream; ++i) {
      (void)call(on, *part.operations[i]);  // what it refuses is the group's error
    }
    RONDO_TRY(on.group_end());
  }
  return {};
}

/// One communicator, in the calling thread.
Status run_here(const CommPart& part) {
  Communicator& on = part.communicator();
  if (part.operations.size() == 1) return call(on, *part.operations.front());
  RONDO_TRY(on.group_start());
  for (const NcclCall* operation : part.operations) (void)call(on, *operation);
  return on.group_end();
}

/// Several, beside each other: on rondo's progress thread. Nothing begins before all are accepted.
Status run_beside(std::span<const CommPart> parts) {
  std::vector<Work> works;
  Status refused;
  size_t open = 0;
  for (; open < parts.size() && refused.ok(); ++open) {
    Communicator& on = parts[open].communicator();
    if (refused = on.group_start(); !refused.ok()) break;
    for (const NcclCall* operation : parts[open].operations) {
      works.push_back(start(on, *operation));
      if (refused.ok()) refused = works.back().status();
    }
  }
  for (size_t i = 0; i < open; ++i) {
    Communicator& on = parts[i].communicator();
    const Status ended = refused.ok() ? on.group_end() : on.group_abandon(refused.message());
    if (refused.ok() && !ended.ok()) refused = ended;
  }
  const Status waited = wait_all(works);
  return refused.ok() ? waited : refused;
}

}  // namespace

Status run(const NcclCall& operation) {
  return operation.comm->use(operation.name, [&](Communicator& on) { return call(on, operation); });
}

Status run(std::span<const NcclCall> operations) {
  const std::vector<CommPart> parts = parts_of(operations);
  const auto locks = lock(parts);
  for (const CommPart& part : parts) {
    RONDO_TRY(part.comm->check(part.operations.front()->name));
  }
  if (parts.empty()) return {};
  if (parts.front().comm->device < 0)
    return parts.size() == 1 ? run_here(parts.front()) : run_beside(parts);
  for (const CommPart& part : parts) RONDO_TRY(enqueue(part));
  return {};
}

Result<double> predict_us(std::span<const NcclCall> operations) {
  double longest = 0;
  for (const CommPart& part : parts_of(operations)) {
    const std::lock_guard lock(part.comm->calls);
    double sum = 0;
    for (const NcclCall* it : part.operations) {
      RONDO_TRY(part.comm->check(it->name));
      if (it->kind != NcclCall::CallKind::kCollective) continue;
      sum += part.communicator()
                 .plan(it->call.collective, it->call.count, it->call.type, false,
                       it->options.algorithm, it->call.op)
                 .predicted_us;
    }
    longest = std::max(longest, sum);
  }
  return longest;
}

}  // namespace rondo::nccl
