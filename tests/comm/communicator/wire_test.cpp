// Communicators whose links move inside progress() only (tests/transport/lazy.hpp): what a call
// owes its peers when it returns, and what a failed link does.
#include <numeric>

#include "comm/setup/transport_decorator.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "tests/transport/lazy.hpp"

namespace rondo::testing {
namespace {

/// Communicators that are made while this lives have that transport.
struct Decorated {
  explicit Decorated(comm::TransportDecorator decorator) { comm::transport_decorator = decorator; }
  ~Decorated() { comm::transport_decorator = nullptr; }
  Decorated(const Decorated&) = delete;
  Decorated& operator=(const Decorated&) = delete;
};

/// Every rank's error, which must name what failed. In processes: a failed link stays so.
void expect_link_error(const Status& status, int from, int to, const std::string& during) {
  const std::string link =
      "the link from rank " + std::to_string(from) + " to rank " + std::to_string(to) + " failed";
  expect_error(status, Code::kPeerDied, link, during, "found by rank " + std::to_string(from));
}

}  // namespace

TEST_CASE("a call that has returned owes its peers nothing: its rank may do something else") {
  const Decorated wire(transport::test::lazy);
  for (const int size : {2, 3, 5}) {
    WorldGang gang(size, [&](Communicator& comm, Link& link) {
      const int rank = comm.rank();
      std::vector<int32_t> data(50, rank);
      expect_ok(comm.broadcast(data.data(), data.data(), 50, kInt, 0), "broadcast");
      expect_eq(data[49], 0, "what was sent");
      if (rank == 0) expect_ok(comm.send(data.data(), 50, kInt, 1), "send");
      if (rank == 1) expect_ok(comm.recv(data.data(), 50, kInt, 0), "recv");
      link.announce("through");
      if (rank == 0) link.await("leave");  // without a call of rondo's
    });
    gang.await_all("through");
    gang.tell(0, "leave");
    gang.require_ok();
  }
}

TEST_CASE("a rank leaves with its last sends in flight, and they arrive") {
  const Decorated wire(transport::test::lazy);
  run_each({2, 3, 5}, [](Communicator& comm) {
    std::vector<int32_t> data(50, comm.rank() + 1);
    for (int turn = 0; turn < 3; ++turn) {
      expect_ok(comm.broadcast(data.data(), data.data(), 50, kInt, 0), "broadcast");
    }
    expect_eq(data[49], 1, "what was sent");
    if (comm.rank() != 0) return expect_ok(comm.recv(data.data(), 50, kInt, 0), "recv");
    for (int peer = 1; peer < comm.size(); ++peer)
      expect_ok(comm.send(data.data(), 50, kInt, peer), "send");
  });
}

TEST_CASE("a link that fails gives every rank the same error, which names the peer") {
  const Decorated wire(transport::test::lazy);
  for (const int size : {2, 3, 5}) {
    for (const bool asynchronous : {false, true}) {
      INFO((asynchronous ? "asynchronous" : "blocking"));
      run_ok(How::kForks, size, [&](Communicator& comm) {
        std::vector<int32_t> data(20000, 1);
        const auto one = [&] {
          return asynchronous ? comm.all_reduce_async(data, data).wait()
                              : comm.all_reduce(data, data);
        };
        // The last rank may be an operation ahead of the others.
        const int last = comm.size() - 1;
        Status status = one();
        if (comm.rank() == last) transport::test::fail_links(last, 0);
        while (status.ok()) status = one();
        expect_link_error(status, last, 0, "all_reduce(int32, sum, count 20000)");
        expect_link_error(comm.barrier(), last, 0, "all_reduce");  // it stays
      });
    }
  }
}

TEST_CASE("a link that fails during a message gives every rank that error") {
  const Decorated wire(transport::test::lazy);
  for (const int size : {2, 3, 5}) {
    run_ok(How::kForks, size, [](Communicator& comm) {
      std::vector<int32_t> data(20000, 1);
      if (comm.rank() == 1) transport::test::fail_links(1, 0);
      Status status;
      if (comm.rank() == 0) status = comm.recv(data.data(), 20000, kInt, 1);
      if (comm.rank() == 1) status = comm.send(data.data(), 20000, kInt, 0);
      expect_link_error(error_of_barriers(comm, status), 1, 0,
                        "send(int32, count 20000) to rank 0");
    });
  }
}

TEST_CASE("a wire beside links that take references: each carries what it can") {
  const Decorated wire(transport::test::lazy_between);
  run_each({3}, [](Communicator& comm) {
    const auto n = static_cast<size_t>(comm.size());
    const size_t count = 100003;
    Buffer out(count * 4 * n, true), in(count * 4 * n, true);
    const auto numbers = [](Buffer& of, size_t block) {
      return reinterpret_cast<int32_t*>(of.data()) + block * count;
    };
    expect_ok(comm.group_start(), "group_start");
    for (size_t p = 0; p < n; ++p) {
      std::iota(numbers(out, p), numbers(out, p) + count, 7 * comm.rank());
      expect_ok(comm.send(numbers(out, p), count, kInt, static_cast<int>(p)), "send");
      expect_ok(comm.recv(numbers(in, p), count, kInt, static_cast<int>(p)), "recv");
    }
    expect_ok(comm.group_end(), "group_end");
    for (size_t p = 0; p < n; ++p) {
      const int32_t* const got = numbers(in, p);
      expect(got[count - 1] - got[0] == static_cast<int32_t>(count) - 1, "last");
      expect_eq(got[0], 7 * static_cast<int32_t>(p), "first");
    }
    expect_ok(comm.all_reduce(numbers(out, 0), numbers(in, 0), count, kInt), "sum");
    expect_eq(numbers(in, 0)[1], 7 * (0 + 1 + 2) + 3, "sum");
  });
}

}  // namespace rondo::testing
