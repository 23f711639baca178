// Communicators whose links move inside progress() only (tests/transport/lazy.hpp): what a call
// owes its peers when it returns, and what a failed link does.
#include <numeric>

#include "comm/setup/transport_decorator.hpp"
#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"
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
  expect(status.code() == Code::kPeerDied, status.to_string());
  for (const std::string& part : {link, during, "found by rank " + std::to_string(from)}) {
    expect(status.message().find(part) != std::string::npos,
           "'" + status.to_string() + "' does not say '" + part + "'");
  }
}

}  // namespace

TEST_CASE("a call that has returned owes its peers nothing: its rank may do something else") {
  const Decorated wire(transport::test::lazy);
  for (const int size : {2, 3, 5}) {
    INFO(size << " ranks");
    const TempDirectory directory;
    ForkGang gang(size, [&](int rank, Link& link) {
      auto comm = Communicator::create(world_config(directory.path(), rank, size));
      expect(comm.ok(), comm.status().to_string());
      std::vector<int32_t> data(50, rank);
      expect_ok(comm->broadcast(data.data(), data.data(), 50, DataType::kInt32, 0), "broadcast");
      expect_eq(data[49], 0, "what was sent");
      if (rank == 0) expect_ok(comm->send(data.data(), 50, DataType::kInt32, 1), "send");
      if (rank == 1) expect_ok(comm->recv(data.data(), 50, DataType::kInt32, 0), "recv");
      link.announce("through");
      if (rank == 0) link.await("leave");  // without a call of rondo's
    });
    for (int rank = 0; rank < size; ++rank) gang.await(rank, "through");
    gang.tell(0, "leave");
    require_all_ok(gang.join());
  }
}

TEST_CASE("a rank leaves with its last sends in flight, and they arrive") {
  const Decorated wire(transport::test::lazy);
  for (const How how : kHows) {
    for (const int size : {2, 3, 5}) {
      require_all_ok(run_world(how, size, [](Communicator& comm) {
        std::vector<int32_t> data(50, comm.rank() + 1);
        for (int turn = 0; turn < 3; ++turn) {
          expect_ok(comm.broadcast(data.data(), data.data(), 50, DataType::kInt32, 0), "broadcast");
        }
        expect_eq(data[49], 1, "what was sent");
        if (comm.rank() == 0) {
          for (int peer = 1; peer < comm.size(); ++peer) {
            expect_ok(comm.send(data.data(), 50, DataType::kInt32, peer), "send");
          }
        } else {
          expect_ok(comm.recv(data.data(), 50, DataType::kInt32, 0), "recv");
        }
      }));
    }
  }
}

TEST_CASE("a link that fails gives every rank the same error, which names the peer") {
  const Decorated wire(transport::test::lazy);
  for (const int size : {2, 3, 5}) {
    for (const bool asynchronous : {false, true}) {
      INFO(size << " ranks" << (asynchronous ? ", asynchronous" : ""));
      require_all_ok(run_world(How::kForks, size, [&](Communicator& comm) {
        std::vector<int32_t> data(20000, 1);
        const auto one = [&] {
          return asynchronous
                     ? comm.all_reduce_async(data.data(), data.data(), data.size(),
                                             DataType::kInt32)
                           .wait()
                     : comm.all_reduce(data.data(), data.data(), data.size(), DataType::kInt32);
        };
        // The last rank may be an operation ahead of the others.
        const int last = comm.size() - 1;
        Status status = one();
        if (comm.rank() == last) transport::test::fail_links(last, 0);
        while (status.ok()) status = one();
        expect_link_error(status, last, 0, "all_reduce(int32, sum, count 20000)");
        expect_link_error(comm.barrier(), last, 0, "all_reduce");  // it stays
      }));
    }
  }
}

TEST_CASE("a link that fails during a message gives every rank that error") {
  const Decorated wire(transport::test::lazy);
  for (const int size : {2, 3, 5}) {
    require_all_ok(run_world(How::kForks, size, [](Communicator& comm) {
      std::vector<int32_t> data(20000, 1);
      if (comm.rank() == 1) transport::test::fail_links(1, 0);
      Status status;
      if (comm.rank() == 0) status = comm.recv(data.data(), 20000, DataType::kInt32, 1);
      if (comm.rank() == 1) status = comm.send(data.data(), 20000, DataType::kInt32, 0);
      while (status.ok()) status = comm.barrier();
      expect_link_error(status, 1, 0, "send(int32, count 20000) to rank 0");
    }));
  }
}

TEST_CASE("a wire beside links that take references: each carries what it can") {
  const Decorated wire(transport::test::lazy_between);
  for (const How how : kHows) {
    require_all_ok(run_world(how, 3, [](Communicator& comm) {
      const int n = comm.size(), r = comm.rank();
      const size_t count = 100003;
      const auto each = static_cast<size_t>(n);
      Buffer out(count * 4 * each, true), in(count * 4 * each, true);
      const auto numbers = [](Buffer& of, size_t block) {
        return reinterpret_cast<int32_t*>(of.data()) + block * count;
      };
      for (size_t p = 0; p < each; ++p) std::iota(numbers(out, p), numbers(out, p) + count, 7 * r);
      expect_ok(comm.group_start(), "group_start");
      for (int p = 0; p < n; ++p) {
        const auto block = static_cast<size_t>(p);
        expect_ok(comm.send(numbers(out, block), count, DataType::kInt32, p), "send");
        expect_ok(comm.recv(numbers(in, block), count, DataType::kInt32, p), "recv");
      }
      expect_ok(comm.group_end(), "group_end");
      for (int p = 0; p < n; ++p) {
        const int32_t* const got = numbers(in, static_cast<size_t>(p));
        expect_eq(got[0], 7 * p, "first");
        expect_eq(got[count - 1], 7 * p + static_cast<int32_t>(count) - 1, "last");
      }
      expect_ok(comm.all_reduce(numbers(out, 0), numbers(in, 0), count, DataType::kInt32), "sum");
      expect_eq(numbers(in, 0)[1], 7 * (0 + 1 + 2) + 3, "sum");
    }));
  }
}

}  // namespace rondo::testing
