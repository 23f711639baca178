// A heap that is exhausted: every allocation of every public call fails once, in turn, on one of
// two ranks. Both ranks get a Status, soon, and nothing is thrown.
#include <atomic>
#include <barrier>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/process_memory.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "tests/comm/device/registered_memory.hpp"
#include "tests/harness/failing_allocation.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

constexpr size_t kCount = 3000;  // floats: large enough for references
const std::vector<size_t> kCounts(2, kCount);
struct Memory {
  std::vector<float> in = std::vector<float>(2 * kCount, 1), out = std::vector<float>(2 * kCount);
};
// Allocates nothing itself.
using Body = Status (*)(Communicator&, Memory&);

bool is_expected(const Status& status) {
  return status.ok() || status.code() == Code::kResourceExhausted;
}

/// Whether the call has an allocation `k`. If so it fails on rank 0, and if that makes rank 0's call
/// fail, rank 1 learns it and does not wait for ever.
bool try_with(Body body, long k) {
  std::atomic<bool> failed{false};
  run_ok(How::kThreads, 2, [&](Communicator& comm) {
    is_test = true;
    Memory memory;
    // Rank 0 may be through it, and fail, before rank 1 is.
    const Status met = comm.barrier();
    expect(met.ok() || (comm.rank() == 1 && is_expected(met)), "barrier: " + met.to_string());
    std::optional<Failing> failing;
    if (comm.rank() == 0) failing.emplace(k);
    const Status status = body(comm, memory);
    if (comm.rank() == 0) failed = Failing::has_failed();
    failing.reset();
    expect(is_expected(status), status.to_string());
    const Status after = comm.barrier();
    expect(is_expected(after), "a barrier after it: " + after.to_string());
    if (comm.rank() == 0 && !status.ok()) expect(!after.ok(), "the failure did not stick");
  });
  return failed;
}

/// call(k) says whether allocation k of the caller's failed: from the first to the last that there is.
void fail_in_turn(bool (*call)(long k)) {
  is_test = true;
  watched = Watched::kCaller;
  for (long k = 1; call(k); ++k) REQUIRE(k < 1000);
}

void fail_each(const char* call, Body body) {
  is_test = true;
  long tried = 0;
  for (const Watched whose : {Watched::kCaller, Watched::kOwnThreads}) {
    watched = whose;
    for (long k = 1;; ++k, ++tried) {
      INFO(call << ", allocation " << k << (whose == Watched::kCaller ? "" : " of own threads"));
      REQUIRE(k < 1000);
      if (!try_with(body, k)) break;
    }
  }
  INFO(call);
  CHECK(tried > 0);
}

}  // namespace

TEST_CASE("A collective of which an allocation fails returns a Status on every rank") {
  fail_each("all_reduce", [](Communicator& c, Memory& m) {
    return c.all_reduce(m.in.data(), m.out.data(), kCount, kFloat);
  });
  fail_each("broadcast", [](Communicator& c, Memory& m) {
    return c.broadcast(m.in.data(), m.out.data(), kCount, kFloat, 0);
  });
  fail_each("all_gather_v", [](Communicator& c, Memory& m) {
    return c.all_gather_v(m.in.data(), m.out.data(), kCounts, {}, kFloat);
  });
  fail_each("gather_v", [](Communicator& c, Memory& m) {
    return c.gather_v(m.in.data(), m.out.data(), kCounts, {}, kFloat, 0);
  });
  fail_each("exclusive_scan", [](Communicator& c, Memory& m) {
    return c.exclusive_scan(m.in.data(), m.out.data(), kCount, kFloat);
  });
  fail_each("reduce_scatter_v", [](Communicator& c, Memory& m) {
    return c.reduce_scatter_v(m.in.data(), m.out.data(), kCounts, {}, kFloat);
  });
  fail_each("all_to_all_v", [](Communicator& c, Memory& m) {
    return c.all_to_all_v(m.in.data(), kCounts, {}, m.out.data(), kCounts, {}, kFloat);
  });
}

TEST_CASE("An asynchronous call of which an allocation fails ends its Work") {
  fail_each("all_reduce_async", [](Communicator& c, Memory& m) {
    return c.all_reduce_async(m.in.data(), m.out.data(), kCount, kFloat).wait();
  });
  fail_each("all_to_all_v_async", [](Communicator& c, Memory& m) {
    return c.all_to_all_v_async(m.in.data(), kCounts, {}, m.out.data(), kCounts, {}, kFloat).wait();
  });
  fail_each("send_async and recv_async", [](Communicator& c, Memory& m) {
    Work sent = c.send_async(m.in.data(), kCount, kFloat, 1 - c.rank());
    Work received = c.recv_async(m.out.data(), kCount, kFloat, 1 - c.rank());
    const Status status = sent.wait();
    const Status other = received.wait();
    return status.ok() ? other : status;
  });
}

TEST_CASE("A message or a group of which an allocation fails returns a Status on every rank") {
  fail_each("send, recv", [](Communicator& c, Memory& m) {
    return c.rank() == 0 ? c.send(m.in.data(), kCount, kFloat, 1)
                         : c.recv(m.out.data(), kCount, kFloat, 0);
  });
  fail_each("a group", [](Communicator& c, Memory& m) {
    Status status = c.group_start();
    const auto keep = [&](const Status& next) {
      if (status.ok()) status = next;
    };
    keep(c.send(m.in.data(), kCount, kFloat, 1 - c.rank()));
    keep(c.recv(m.out.data(), kCount, kFloat, 1 - c.rank()));
    keep(c.all_reduce(m.in.data() + kCount, m.out.data() + kCount, kCount, kFloat));
    keep(c.group_end());
    return status;
  });
  fail_each("a group with a Work", [](Communicator& c, Memory& m) {
    Status status = c.group_start();
    Work work = c.all_reduce_async(m.in.data(), m.out.data(), kCount, kFloat);
    const Status called = c.broadcast(m.in.data(), m.out.data() + kCount, kCount, kFloat, 0);
    const Status end = c.group_end();
    const Status done = work.wait();
    for (const Status* next : {&called, &end, &done}) {
      if (status.ok()) status = *next;
    }
    return status;
  });
}

TEST_CASE("What only asks, or aborts, throws nothing when an allocation fails") {
  fail_each("plan, flight_record, status", [](Communicator& c, Memory&) {
    (void)c.plan(Collective::kAllReduce, kCount, kFloat);
    (void)c.flight_record();
    return c.status();
  });
  fail_in_turn([](long k) {
    Communicator alone = created(config_alone());
    const std::string reason(100, 'r');
    bool failed = false;
    {
      const Failing failing(k);
      alone.abort(reason);
      failed = Failing::has_failed();
    }
    CHECK_FALSE(alone.barrier().ok());
    return failed;
  });
}

namespace {

/// A call that makes a communicator: from `parent`, or, where that is null, by `config`.
using Maker = Result<Communicator> (*)(const Config& config, Communicator* parent);

struct Creation {
  const char* call;
  Maker make;
  bool from_parent;
};

struct Outcome {
  std::atomic<bool> has_failed{false};  // an allocation
  std::atomic<bool> is_made[2] = {};    // and works, by rank
};

/// Allocation `k` of the call fails on rank `failing`, if it has as many.
void create_with(const Creation& creation, int failing, long k, Outcome& outcome) {
  const TempDirectory directory;
  std::barrier<> meeting(2);  // a rank that is still in rondo's would get the failure that comes
  require_all_ok(run_ranks(How::kThreads, 2, [&](int rank) {
    is_test = true;
    Config config = world_config(directory.path(), rank, 2);
    config.links = "built-in";
    std::optional<Communicator> parent;
    if (creation.from_parent) {
      auto first = Communicator::create(config);
      Status begun = first.status();
      if (begun.ok()) begun = parent.emplace(std::move(*first)).barrier();
      meeting.arrive_and_wait();
      expect_ok(begun, "the parent and its barrier");
    }
    Result<Communicator> made = Status();
    {
      std::optional<Failing> injected;
      if (rank == failing) injected.emplace(k);
      made = creation.make(config, parent ? &*parent : nullptr);
      if (rank == failing) outcome.has_failed = Failing::has_failed();
    }
    const Status& status = made.status();
    if (rank == failing && watched == Watched::kCaller) {  // threads are of either rank
      expect(made.ok() || is_expected(status), status.to_string());
    }
    const Status after = made.ok() ? made->barrier() : status;
    expect(after.code() != Code::kTimeout, after.to_string());
    expect(after.message().find("within") == std::string::npos, after.to_string());
    outcome.is_made[rank] = after.ok();
    if (!made.ok() || after.ok()) return;
    expect_eq(made->barrier().ok(), false, "a later barrier");
  }));
}

void fail_each_creation(const Creation& creation, long every = 1) {
  is_test = true;
  // The sanitizers, which are slow, see a part of the allocations.
  const long stride = kSanitized ? 23 : every;
  for (const int failing : {0, 1}) {
    for (const Watched whose : {Watched::kCaller, Watched::kOwnThreads}) {
      watched = whose;
      long k = 1;
      for (bool failed = true; failed; k += stride) {
        INFO(creation.call << ", allocation " << k << " of rank " << failing
                           << (whose == Watched::kCaller ? "" : "'s own threads"));
        REQUIRE(k < 5000);
        Outcome outcome;
        create_with(creation, failing, k, outcome);
        failed = outcome.has_failed;
        CHECK(outcome.is_made[0] == outcome.is_made[1]);
        if (!failed) CHECK(outcome.is_made[0]);
      }
      INFO(creation.call);
      CHECK((k > 1 + stride || whose == Watched::kOwnThreads));
    }
  }
}

}  // namespace

TEST_CASE("A creation of which an allocation fails ends on every rank, at once") {
  fail_each_creation(
      {"create", [](const Config& config, Communicator*) { return Communicator::create(config); },
       false});
}

TEST_CASE("A creation in the background of which an allocation fails ends on every rank") {
  fail_each_creation(
      {"create_async",
       [](const Config& config, Communicator*) { return Communicator::create_async(config).get(); },
       false});
}

TEST_CASE("A duplicate or split of which an allocation fails ends on every rank, at once") {
  fail_each_creation(
      {"duplicate", [](const Config&, Communicator* parent) { return parent->duplicate(); }, true});
  fail_each_creation({"split",
                      [](const Config&, Communicator* parent) -> Result<Communicator> {
                        auto made = parent->split(1, 0);
                        if (!made.ok()) return made.status();
                        return std::move(**made);
                      },
                      true},
                     7);  // after its exchange it does as a duplicate
}

TEST_CASE("make_unique_id throws nothing when an allocation fails") {
  fail_in_turn([](long k) {
    const Failing failing(k);
    const bool ok = make_unique_id().ok();
    CHECK(ok != Failing::has_failed());
    return !ok;
  });
}

TEST_CASE("What the ranks of a process share on GPUs is opened as a whole, or not at all") {
  is_test = true;
  watched = Watched::kCaller;
  const auto cuda = device::test::make_gpu();
  const auto open = [&cuda](long k) {
    const size_t bytes = device::ProcessMemory::control_bytes(2);
    auto control = transport::Segment::create("rondo-test", bytes);
    REQUIRE(control.ok());
    const Failing failing(k);
    const auto made = device::ProcessMemory::open(cuda, std::move(*control), 2);
    return made.ok();
  };
  bool failed = true;
  for (long k = 1; failed; ++k) {
    INFO("allocation " << k);
    REQUIRE(k < 100);
    try {
      const bool opened = open(k);
      CHECK(opened);
      failed = false;
    } catch (const std::bad_alloc&) {
    }
    CHECK(open(0));
  }
}
