// See operations.hpp.
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

constexpr DataType kType = DataType::kInt64;

int64_t value(int rank, size_t i, int turn) {
  return 1'000'003 * (rank + 1) + 7 * static_cast<int64_t>(i) + 31 * turn;
}

/// Of the ranks from 0 to `ranks` - 1.
int64_t sum(int ranks, size_t i, int turn) {
  const int64_t n = ranks;
  return 1'000'003 * n * (n + 1) / 2 + n * (7 * static_cast<int64_t>(i) + 31 * turn);
}

void fill(Communicator& comm, Buffers& b, int turn) {
  for (size_t i = 0; i < b.count; ++i) b.input()[i] = value(comm.rank(), i, turn);
}

template <class Wanted>
Status checked(const Status& status, Buffers& b, size_t count, const Wanted& wanted) {
  for (size_t i = 0; status.ok() && i < count; ++i) {
    if (b.output()[i] == wanted(i)) continue;
    expect_eq(b.output()[i], wanted(i), "element " + std::to_string(i));
  }
  return status;
}

Status all_reduce(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  return checked(comm.all_reduce(b.input(), b.output(), b.count, kType), b, b.count,
                 [&](size_t i) { return sum(comm.size(), i, turn); });
}

Status all_reduce_async(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  Work work = comm.all_reduce_async(b.input(), b.output(), b.count, kType);
  return checked(work.wait(), b, b.count, [&](size_t i) { return sum(comm.size(), i, turn); });
}

Status reduce_scatter(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const size_t block = b.count / static_cast<size_t>(comm.size());
  const size_t first = block * static_cast<size_t>(comm.rank());
  return checked(comm.reduce_scatter(b.input(), b.output(), block, kType), b, block,
                 [&](size_t i) { return sum(comm.size(), first + i, turn); });
}

Status all_gather(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const size_t block = b.count / static_cast<size_t>(comm.size());
  return checked(comm.all_gather(b.input(), b.output(), block, kType), b, b.count,
                 [&](size_t i) { return value(static_cast<int>(i / block), i % block, turn); });
}

Status broadcast(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const int root = turn % comm.size();
  return checked(comm.broadcast(b.input(), b.output(), b.count, kType, root), b, b.count,
                 [&](size_t i) { return value(root, i, turn); });
}

Status reduce(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const int root = turn % comm.size();
  const size_t mine = comm.rank() == root ? b.count : 0;
  return checked(comm.reduce(b.input(), b.output(), b.count, kType, ReduceOp::kSum, root), b, mine,
                 [&](size_t i) { return sum(comm.size(), i, turn); });
}

Status all_to_all(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const size_t block = b.count / static_cast<size_t>(comm.size());
  const size_t first = block * static_cast<size_t>(comm.rank());
  return checked(comm.all_to_all(b.input(), b.output(), block, kType), b, b.count, [&](size_t i) {
    return value(static_cast<int>(i / block), first + i % block, turn);
  });
}

Status exclusive_scan(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  return checked(comm.exclusive_scan(b.input(), b.output(), b.count, kType), b,
                 comm.rank() == 0 ? 0 : b.count,
                 [&](size_t i) { return sum(comm.rank(), i, turn); });
}

Status barrier(Communicator& comm, Buffers&, int) { return comm.barrier(); }

/// A ring of messages.
Status messages(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const int left = (comm.rank() + comm.size() - 1) % comm.size();
  RONDO_TRY(comm.group_start());
  (void)comm.send(b.input(), b.count, kType, (comm.rank() + 1) % comm.size());
  (void)comm.recv(b.output(), b.count, kType, left);
  return checked(comm.group_end(), b, b.count, [&](size_t i) { return value(left, i, turn); });
}

/// With every rank two messages each way; the recvs come in the other order, of the odd tags first.
Status tagged_messages(Communicator& comm, Buffers& b, int turn) {
  fill(comm, b, turn);
  const int ranks = comm.size();
  const size_t half = b.count / (2 * static_cast<size_t>(ranks));
  RONDO_TRY(comm.group_start());
  for (const int odd : {0, 1}) {
    for (int peer = 0; peer < ranks; ++peer) {
      const size_t at = (2 * static_cast<size_t>(peer) + static_cast<size_t>(odd)) * half;
      (void)comm.send(b.input() + at, half, kType, peer, 10 + odd);
    }
  }
  for (const int odd : {1, 0}) {
    for (int peer = ranks - 1; peer >= 0; --peer) {
      const size_t at = (2 * static_cast<size_t>(peer) + static_cast<size_t>(odd)) * half;
      (void)comm.recv(b.output() + at, half, kType, peer, 10 + odd);
    }
  }
  const size_t first = 2 * static_cast<size_t>(comm.rank()) * half;
  return checked(comm.group_end(), b, 2 * half * static_cast<size_t>(ranks), [&](size_t i) {
    return value(static_cast<int>(i / (2 * half)), first + i % (2 * half), turn);
  });
}

}  // namespace

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {{"all_reduce"}, all_reduce},
      {{"recv", "send"}, messages},
      {{"broadcast"}, broadcast},
      {{"all_gather"}, all_gather},
      {{"barrier"}, barrier},
      {{"reduce_scatter"}, reduce_scatter},
      {{"reduce"}, reduce},
      {{"all_to_all"}, all_to_all},
      {{"all_reduce"}, all_reduce_async},
      {{"exclusive_scan"}, exclusive_scan},
      {{"recv", "send"}, tagged_messages},
  };
  return all;
}

Status call_until_failure(Communicator& comm, Link& link, const Operation& operation,
                          Buffers& buffers) {
  Status status;
  for (int turn = 0; status.ok(); ++turn) {
    if (turn == 3) link.announce("going");
    status = operation.call(comm, buffers, turn);
  }
  return status;
}

HostsGang start(const Hosts& hosts, const Placement& placement, const Operation& operation,
                const Config& config, size_t count, bool library) {
  HostsGang gang(
      hosts, placement,
      [&](Communicator& comm, Link& link) {
        Buffers buffers(count, library);
        const Status status = call_until_failure(comm, link, operation, buffers);
        expect(comm.barrier().code() == status.code(), "not sticky");
        return status;
      },
      config);
  gang.await_all("going");
  return gang;
}

}  // namespace rondo::testing
