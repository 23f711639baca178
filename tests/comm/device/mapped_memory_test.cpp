// Registered memory that was mapped by cuMemMap, in one piece or many: other processes get it by file
// descriptors, which are real ones here (memfd, sockets), between threads that count as processes,
// and between processes.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/comm/device/alone.hpp"
#include "tests/comm/device/registered_memory.hpp"
#include "tests/harness/rank_group.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::device::test {
namespace {

using Sizes = Slabs::Sizes;
constexpr size_t kPage = 4096;
constexpr size_t kAll = kBefore + kSlab;

Sizes one_piece() { return {kAll}; }
Sizes some_pieces() { return {3 * kPage, kSlab / 2, 5 * kPage, kAll - kSlab / 2 - 8 * kPage}; }
Sizes many_pieces() { return Sizes(kAll / kPage, kPage); }  // descriptors go around several times

/// Of those that hold [kBefore, kAll), which is what is registered.
size_t registered_pieces(const Sizes& pieces) {
  size_t end = 0, found = 0;
  for (const size_t each : pieces) found += (end += each) > kBefore;
  return found;
}

/// Without those that the fake GPU's memory itself is.
size_t open_descriptors(const FakeGpu& gpu) {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all))) - gpu.files();
}

/// Descriptors in messages that nobody has taken yet, where the kernel shows them.
int descriptors_on_their_way() {
  int all = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream facts(each.path());
    std::string word;
    while (facts >> word) {
      if (int here = 0; word == "scm_fds:" && facts >> here) all += here;
    }
  }
  return all;
}

/// What is open after communicators have come and gone: the process keeps some.
size_t descriptors_afterwards() {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  { World world(gpu, 2); }
  return open_descriptors(*gpu);
}

/// How many descriptors this process may have, until the end of the scope.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    if (getrlimit(RLIMIT_NOFILE, &before_) != 0) std::abort();
    const rlimit here = {.rlim_cur = std::min(most, before_.rlim_max),
                         .rlim_max = before_.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &here) != 0) std::abort();
  }
  ~DescriptorLimit() { (void)setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

constexpr rlim_t kEnough = 4096;  // where the fake GPU has many pieces, each with one

/// Nothing is registered, and the communicator works on.
void check_goes_through_slots(SlabRig& world) {
  CHECK(world.gpu->mapped_pieces() == 0);
  CHECK_FALSE(goes_directly(world, {.collective = Collective::kAllReduce, .count = 4096}));
}

TEST_CASE("Between processes, mapped memory of one piece or many is registered") {
  const DescriptorLimit enough(kEnough);
  // By rank; empty: memory of cudaMalloc().
  const std::vector<std::vector<Sizes>> forms = {{one_piece(), one_piece()},
                                                 {some_pieces(), many_pieces()},
                                                 {many_pieces(), Sizes(), some_pieces()},
                                                 {many_pieces(), many_pieces(), many_pieces()}};
  for (size_t form = 0; form < forms.size(); ++form) {
    DYNAMIC_SECTION("form " << form) {
      SlabRig world(static_cast<int>(forms[form].size()), processes(), forms[form]);
      const size_t descriptors = open_descriptors(*world.gpu), imported = world.gpu->imported();
      require_registered(world, world.slabs);
      CHECK(open_descriptors(*world.gpu) == descriptors);
      size_t pieces = 0;  // of all ranks, each mapped by all others
      for (const Sizes& each : forms[form]) {
        pieces += registered_pieces(each) * (forms[form].size() - 1);
      }
      CHECK(world.gpu->mapped_pieces() == pieces);
      const Call call = chosen_direct(world);
      compare(world, world.slabs,
              {call, {.collective = Collective::kAllToAll, .count = 700}, call});
      CHECK(was_told(*world.gpu, world.slabs.begin(0)));
      require_unregistered(world, world.slabs);
      CHECK(world.gpu->imported() == imported);
      check_goes_through_slots(world);
      require_registered(world, world.slabs);  // again
      CHECK(world.gpu->mapped_pieces() == pieces);
    }
  }
}

TEST_CASE("Any part of mapped memory may be registered, across the bounds of its pieces") {
  SlabRig world(2, processes(), {some_pieces(), some_pieces()});
  struct Part {
    size_t from, bytes, pieces;
  };
  // some_pieces() begins kBefore, a page, before begin(rank).
  for (const Part& part :
       {Part{0, kPage, 1}, Part{kPage + 8, kPage - 8, 1}, Part{kPage, kPage + 1, 2},
        Part{2 * kPage, 100, 1}, Part{2 * kPage + 64, kSlab / 2 + kPage, 2},
        Part{kPage, kSlab / 2 + 6 * kPage + 1, 4}}) {
    INFO(part.from);
    for (const Status& status : on_all(world, [&](int rank) {
           return world[rank].register_device_memory(world.slabs.begin(rank) + part.from,
                                                     part.bytes);
         })) {
      must(status);
    }
    CHECK(world.gpu->mapped_pieces() == 2 * part.pieces);
    const Call call = forced_direct((part.bytes - 16) / 16);  // nearly fills it
    AllPlaced found(1);
    for (int rank = 0; rank < 2; ++rank) {
      found[0].emplace_back(call, rank, 2, world.slabs.begin(rank) + (part.from + 7) / 8 * 8);
    }
    compare(world, {call}, found);
    for (int rank = 0; rank < 2; ++rank) {
      must(world[rank].unregister_device_memory(world.slabs.begin(rank) + part.from));
    }
    CHECK(world.gpu->mapped_pieces() == 0);
  }
}

TEST_CASE(
    "A graph's operations in mapped memory go through slots once its registration has ended") {
  RegisteredRig world(2, processes(), {many_pieces(), some_pieces()});
  const std::vector<Call> calls = {chosen_direct(world)};
  const auto wanted = on_host(calls, 2);
  AllPlaced found = place(world.slabs, calls, 2);
  auto graphs = capture_all(world, [&](int rank) { issue_on(world, rank, calls, found); });
  for (const bool direct : {true, false}) {
    if (!direct) require_unregistered(world, world.slabs);
    world.gpu->forget_told();
    put_all(found);
    replay_all(graphs);
    check_all(world, calls, found, wanted);
    CHECK(was_told(*world.gpu, found[0][1].in()) == direct);
    CHECK((world.gpu->mapped_pieces() > 0) == direct);
  }
}

TEST_CASE("Mapped memory that cannot be shared is refused on every rank, and goes through slots") {
  const DescriptorLimit enough(kEnough);
  SlabRig world(3, processes(), {one_piece(), some_pieces(), one_piece()});
  // Of rank 1, on GPU 1.
  std::byte* const long_one = world.gpu->create_mapped(Sizes(1025, kPage), 1);
  std::byte* const elsewhere = world.gpu->create_mapped({kPage, kPage}, 1);
  world.gpu->without_descriptors.insert(elsewhere + kPage);
  std::byte* const own = world.slabs.begin(1);
  struct Wrong {
    std::byte* memory;
    size_t bytes;
    Code code;
    const char* text;
  };
  for (const Wrong& wrong :
       {Wrong{long_one, 1025 * kPage, Code::kUnavailable, "in more than 1024 pieces"},
        Wrong{elsewhere, kPage + 1, Code::kUnavailable, "without a file descriptor's type"},
        Wrong{elsewhere, 2 * kPage + 1, Code::kUnavailable, "without a file descriptor's type"},
        Wrong{own, kSlab + 1, Code::kInvalidArgument, "which ends after 1048576"},
        Wrong{own, SIZE_MAX, Code::kInvalidArgument, "which ends after 1048576"},
        Wrong{world.slabs.begin(0), 100, Code::kInvalidArgument, "is on GPU 0"}}) {
    for (const Status& status :
         register_all_but(1, wrong.memory, wrong.bytes, world, world.slabs)) {
      check_failed(status, wrong.code, {wrong.text});
      CHECK(status.message().starts_with("register_device_memory: rank 1: "));
    }
    check_goes_through_slots(world);
  }
  // What is enough can be.
  for (const Status& status : register_all_but(1, elsewhere, kPage, world, world.slabs)) {
    must(status);
  }
  for (int rank = 0; rank < 3; ++rank) {
    must(world[rank].unregister_device_memory(rank == 1 ? elsewhere : world.slabs.begin(rank)));
  }
  world.gpu->destroy_mapped(long_one);
  world.gpu->destroy_mapped(elsewhere);
}

TEST_CASE("Where a process has ranks on several GPUs, mapped memory goes through slots") {
  SlabRig world(3, processes(2, 3), std::vector<Sizes>(3, one_piece()));
  for (const Status& status : register_all(world, world.slabs)) {
    check_failed(status, Code::kUnavailable, {"this process has ranks on several"});
  }
  check_goes_through_slots(world);
}

TEST_CASE("Ranks of one process on one GPU share mapped memory as it is") {
  RegisteredRig world(4, processes(2, 1), std::vector<Sizes>(4, some_pieces()));
  CHECK(world.gpu->mapped_pieces() == 4 * 2 * some_pieces().size());
  CHECK(goes_directly(world, forced_direct()));
}

TEST_CASE("Where a process may not have more descriptors, mapped memory goes through slots") {
  SlabRig world(2, processes(), {many_pieces(), some_pieces()});
  const size_t descriptors = open_descriptors(*world.gpu);
  // Not fewer than are on their way: the kernel compares those to this limit, too, and refuses to
  // send more unless the process has privileges. All of them are in use.
  constexpr int kMost = 512;
  std::vector<transport::UniqueFd> taken;
  while (taken.empty() || taken.back().get() < kMost) {
    taken.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    REQUIRE(taken.back().valid());
  }
  std::optional<DescriptorLimit> limit;
  std::atomic<int> exported{0};
  world.gpu->after_export = [&] {
    // The last one of the first round: what follows is on its way already.
    if (++exported == 64 + static_cast<int>(some_pieces().size())) limit.emplace(kMost);
  };
  const auto statuses = register_all(world, world.slabs);
  limit.reset();
  taken.clear();
  world.gpu->after_export = {};
  for (const Status& status : statuses) {
    check_failed(status, Code::kResourceExhausted,
                 {"raise it with ulimit -n", "receiving descriptors"});
    CHECK(status.to_string() == statuses[0].to_string());
  }
  CHECK(open_descriptors(*world.gpu) == descriptors);
  check_goes_through_slots(world);
  require_registered(world, world.slabs);
  CHECK(goes_directly(world, chosen_direct(world)));
}

TEST_CASE("Whichever call of CUDA fails while mapped memory is registered, all ranks learn of it") {
  const size_t before = descriptors_afterwards();
  fail_each_call(40, [&](Failing& failing) {
    const Setup setup = processes();
    {
      SlabRig world(2, setup, {some_pieces(), some_pieces()});
      const size_t descriptors = open_descriptors(*world.gpu);
      failing.begin(*world.gpu);
      const auto statuses = register_all(world, world.slabs);
      failing.end(*world.gpu);
      INFO(statuses[0].to_string() << "; " << statuses[1].to_string());
      CHECK(statuses[0].to_string() == statuses[1].to_string());
      CHECK(open_descriptors(*world.gpu) == descriptors);
      CHECK(descriptors_on_their_way() == 0);
      failing.hear(statuses[0]);
      if (failing.told) {
        CHECK(failing.calls > failing.call);
        check_goes_through_slots(world);
        require_registered(world, world.slabs);
        compare(world, world.slabs, {chosen_direct(world)});
      }
    }
    CHECK(open_descriptors(*setup.gpu) == before);
  });
}

TEST_CASE("A rank that goes away while mapped memory is registered is named, and nothing is left") {
  const DescriptorLimit enough(kEnough);
  const size_t before = descriptors_afterwards();
  const Setup setup = processes();
  {
    SlabRig world(3, setup, std::vector<Sizes>(3, many_pieces()));
    const size_t descriptors = open_descriptors(*world.gpu);
    thread_local bool goes = false;
    world.gpu->after_export = [&] {
      if (goes) throw std::runtime_error("this rank has had enough");
    };
    const auto statuses = on_all(world, [&](int rank) {
      goes = rank == 1;
      const Status status = world[rank].register_device_memory(world.slabs.begin(rank), kSlab);
      if (rank == 1) world.leave(1);
      return status;
    });
    CHECK(statuses[1].message() == "this rank has had enough");
    for (const int rank : {0, 2}) {
      INFO(statuses[rank].to_string());
      CHECK_FALSE(statuses[rank].ok());
      CHECK_FALSE(world[rank].status().ok());
    }
    CHECK(open_descriptors(*world.gpu) <= descriptors);
    world.gpu->after_export = {};
    world.leave(0);
    world.leave(2);
  }
  CHECK(open_descriptors(*setup.gpu) == before);
}

#if !defined(__SANITIZE_THREAD__)
/// A rank with memory of many pieces.
struct AloneWithMemory : Alone {
  AloneWithMemory(const TempDirectory& directory, int rank, int size)
      : Alone(make_gpu(0), directory, rank, size, roomy_config()),
        base(gpu->create_mapped(many_pieces(), rank % 2)) {}
  ~AloneWithMemory() {
    ranks.reset();
    gpu->destroy_mapped(base);
  }
  std::byte* const base;
};

TEST_CASE("Processes reach each other's mapped memory by descriptors") {
  constexpr int kRanks = 3, kCount = 2000;
  const TempDirectory directory;
  testing::require_all_ok(testing::run_ranks(testing::How::kForks, kRanks, [&](int rank) {
    AloneWithMemory self(directory, rank, kRanks);
    const size_t descriptors = open_descriptors(*self.gpu);
    for (int turn = 0; turn < 2; ++turn) {
      testing::expect_ok(self.ranks->register_device_memory(self.base + 100, kSlab), "register");
      testing::expect_eq(open_descriptors(*self.gpu), descriptors, "descriptors");
      testing::expect_eq(self.gpu->mapped_pieces(), 2 * many_pieces().size(), "mapped");
      auto* const data = reinterpret_cast<int32_t*>(self.base + 104);
      for (int i = 0; i < kCount; ++i) data[i] = i + 7 * rank;
      self.gpu->forget_told();
      testing::expect_ok(
          sum(*self.ranks, data, data, kCount, self.options(Algorithm::kTwoShotDirect)), "sum");
      testing::expect_ok(self.gpu->synchronize(self.stream), "synchronize");
      testing::expect_ok(self.ranks->status(), "status");
      for (int i = 0; i < kCount; ++i) testing::expect_eq(data[i], 3 * i + 21, "sum");
      testing::expect(was_told(*self.gpu, data), "direct");
      testing::expect_ok(self.ranks->unregister_device_memory(self.base + 100), "unregister");
      testing::expect_eq(self.gpu->mapped_pieces(), size_t{0}, "mapped after the end");
      testing::expect_eq(open_descriptors(*self.gpu), descriptors, "descriptors after the end");
    }
  }));
}

TEST_CASE("A process that is killed while mapped memory is registered is named to the others") {
  constexpr int kRanks = 3;
  const TempDirectory directory;
  testing::ForkGang gang(kRanks, [&](int rank, testing::Link& link) {
    AloneWithMemory self(directory, rank, kRanks);
    const size_t descriptors = open_descriptors(*self.gpu);
    int exported = 0;
    self.gpu->after_export = [&] {
      if (rank != 1 || ++exported < 100) return;  // in a later round
      link.announce("exporting");
      link.await("nothing");
    };
    expect_failed(self.ranks->register_device_memory(self.base, kAll), Code::kPeerDied, "rank 1");
    testing::expect(open_descriptors(*self.gpu) <= descriptors, "descriptors");
    self.ranks.reset();
    testing::expect_eq(self.gpu->mapped_pieces(), size_t{0}, "mapped");
  });
  gang.await(1, "exporting");
  gang.kill(1, SIGKILL);
  check_survivors(gang);
}
#endif

}  // namespace
}  // namespace rondo::device::test
