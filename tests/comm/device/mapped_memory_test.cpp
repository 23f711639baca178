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

#include "tests/comm/communicator/await.hpp"
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

/// But for those that the stand-in's memory itself is.
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

constexpr rlim_t kEnough = 4096;  // where the stand-in has many pieces, each with one

std::vector<Status> register_all(World& world, const Slabs& slabs) {
  return on_all(world,
                [&](int rank) { return world[rank].register_memory(slabs.begin(rank), kSlab); });
}

/// Nothing is registered, and the communicator works on.
void check_goes_through_slots(World& world, Slabs& slabs, FakeGpu& gpu) {
  CHECK(gpu.mapped_pieces() == 0);
  gpu.forget_told();
  compare(world, slabs, {{.collective = Collective::kAllReduce, .count = 4096}});
  CHECK_FALSE(was_told(gpu, slabs.begin(0)));
  CHECK(gpu.trespasses == 0);
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
      const auto gpu = make_gpu();
      const Installed installed(gpu);
      {
        World world(gpu, static_cast<int>(forms[form].size()), roomy_config());
        REQUIRE(world.all_created());
        Slabs slabs(world, *gpu, forms[form]);
        const size_t descriptors = open_descriptors(*gpu), imported = gpu->imported();
        require_registered(world, slabs);
        CHECK(open_descriptors(*gpu) == descriptors);
        size_t pieces = 0;  // of all ranks, each mapped by all others
        for (const Sizes& each : forms[form]) {
          pieces += registered_pieces(each) * (forms[form].size() - 1);
        }
        CHECK(gpu->mapped_pieces() == pieces);
        const Call call = chosen_direct(world);
        compare(world, slabs, {call, {.collective = Collective::kAllToAll, .count = 700}, call});
        CHECK(was_told(*gpu, slabs.begin(0)));
        CHECK(gpu->trespasses == 0);
        require_unregistered(world, slabs);
        CHECK(gpu->imported() == imported);
        check_goes_through_slots(world, slabs, *gpu);
        require_registered(world, slabs);  // again, and the end of the communicators ends it
        CHECK(gpu->mapped_pieces() == pieces);
      }
      CHECK(gpu->alive() == 0);
    }
  }
}

TEST_CASE("Any part of mapped memory may be registered, across the bounds of its pieces") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu, {some_pieces(), some_pieces()});
  struct Part {
    size_t from, bytes, pieces;
  };
  // some_pieces() begins kBefore, a page, before begin(rank).
  for (const Part& part :
       {Part{0, kPage, 1}, Part{kPage + 8, kPage - 8, 1}, Part{kPage, kPage + 1, 2},
        Part{2 * kPage, 100, 1}, Part{2 * kPage + 64, kSlab / 2 + kPage, 2},
        Part{kPage, kSlab / 2 + 6 * kPage + 1, 4}}) {
    const auto statuses = on_all(world, [&](int rank) {
      return world[rank].register_memory(slabs.begin(rank) + part.from, part.bytes);
    });
    for (int rank = 0; rank < 2; ++rank) {
      INFO(part.from << ": " << statuses[static_cast<size_t>(rank)].to_string());
      REQUIRE(statuses[static_cast<size_t>(rank)].ok());
    }
    CHECK(gpu->mapped_pieces() == 2 * part.pieces);
    const size_t count = part.bytes / 2 / sizeof(int32_t) - 2;
    const auto data = [&](int rank) {
      return reinterpret_cast<int32_t*>(slabs.begin(rank) + (part.from + 7) / 8 * 8);
    };
    for (int rank = 0; rank < 2; ++rank) {
      for (size_t i = 0; i < count; ++i) data(rank)[i] = static_cast<int32_t>(i) + 7 * rank;
    }
    for (int rank = 0; rank < 2; ++rank) {
      CallOptions options = world.on_stream(rank);
      options.algorithm = Algorithm::kTwoShotDirect;
      REQUIRE(
          world[rank]
              .all_reduce(data(rank), data(rank), count, DataType::kInt32, ReduceOp::kSum, options)
              .ok());
    }
    world.synchronize();
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(world[rank].status().ok());
      bool right = true;
      for (size_t i = 0; i < count; ++i) {
        right = right && data(rank)[i] == 2 * static_cast<int32_t>(i) + 7;
      }
      CHECK(right);
      REQUIRE(world[rank].unregister_memory(slabs.begin(rank) + part.from).ok());
    }
    CHECK(gpu->trespasses == 0);
    CHECK(gpu->mapped_pieces() == 0);
  }
}

TEST_CASE(
    "A graph's operations in mapped memory go through slots once its registration has ended") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu, {many_pieces(), some_pieces()});
  require_registered(world, slabs);
  const std::vector<Call> calls = {chosen_direct(world)};
  const auto wanted = on_host(calls, 2);
  AllPlaced found = place(slabs, calls, 2);
  std::vector<FakeGpu::Graph> graphs;
  for (int rank = 0; rank < 2; ++rank) REQUIRE(gpu->begin_capture(world.stream(rank)).ok());
  issue_all(world, calls, found);
  for (int rank = 0; rank < 2; ++rank) {
    graphs.push_back(gpu->end_capture(world.stream(rank)).value());
  }
  for (const bool direct : {true, false}) {
    if (!direct) require_unregistered(world, slabs);
    gpu->forget_told();
    for (int rank = 0; rank < 2; ++rank) {
      found[0][static_cast<size_t>(rank)].put();
    }
    for (int rank = 0; rank < 2; ++rank) {
      gpu->replay(graphs[static_cast<size_t>(rank)], world.stream(rank));
    }
    world.synchronize();
    check_all(world, calls, found, wanted);
    CHECK(was_told(*gpu, found[0][1].in()) == direct);
    CHECK((gpu->mapped_pieces() > 0) == direct);
    CHECK(gpu->trespasses == 0);
  }
}

TEST_CASE("Mapped memory that cannot be shared is refused on every rank, and goes through slots") {
  const DescriptorLimit enough(kEnough);
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 3, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu, {one_piece(), some_pieces(), one_piece()});
    // Of rank 1, on GPU 1.
    std::byte* const long_one = gpu->create_mapped(Sizes(1025, kPage), 1);
    std::byte* const elsewhere = gpu->create_mapped({kPage, kPage}, 1);
    gpu->without_descriptors.insert(elsewhere + kPage);
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
          Wrong{slabs.begin(1), kSlab + 1, Code::kInvalidArgument, "which ends after 1048576"},
          Wrong{slabs.begin(1), SIZE_MAX, Code::kInvalidArgument, "which ends after 1048576"},
          Wrong{slabs.begin(0), 100, Code::kInvalidArgument, "is on GPU 0"}}) {
      for (const Status& status : on_all(world, [&](int rank) {
             return rank == 1 ? world[1].register_memory(wrong.memory, wrong.bytes)
                              : world[rank].register_memory(slabs.begin(rank), kSlab);
           })) {
        INFO(status.to_string());
        CHECK(status.code() == wrong.code);
        CHECK(status.message().find("register_memory: rank 1: ") == 0);
        CHECK(status.message().find(wrong.text) != std::string::npos);
      }
      check_goes_through_slots(world, slabs, *gpu);
    }
    // What is enough can be.
    for (const Status& status : on_all(world, [&](int rank) {
           return rank == 1 ? world[1].register_memory(elsewhere, kPage)
                            : world[rank].register_memory(slabs.begin(rank), kSlab);
         })) {
      CHECK(status.ok());
    }
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(world[rank].unregister_memory(rank == 1 ? elsewhere : slabs.begin(rank)).ok());
    }
    gpu->destroy_mapped(long_one);
    gpu->destroy_mapped(elsewhere);
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Where a process has ranks on several GPUs, mapped memory goes through slots") {
  const auto gpu = make_gpu(2, 3);
  const Installed installed(gpu);
  World world(gpu, 3, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu, std::vector<Sizes>(3, one_piece()));
  for (const Status& status : register_all(world, slabs)) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().find("this process has ranks on several") != std::string::npos);
  }
  check_goes_through_slots(world, slabs, *gpu);
}

TEST_CASE("Ranks of one process on one GPU share mapped memory as it is") {
  const auto gpu = make_gpu(2, 1);
  const Installed installed(gpu);
  World world(gpu, 4, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu, std::vector<Sizes>(4, some_pieces()));
  require_registered(world, slabs);
  CHECK(gpu->mapped_pieces() == 4 * 2 * some_pieces().size());
  compare(world, slabs,
          {{.collective = Collective::kAllReduce,
            .count = 1000,
            .algorithm = Algorithm::kTwoShotDirect}});
  CHECK(was_told(*gpu, slabs.begin(0)));
}

TEST_CASE("Where a process may not have more descriptors, mapped memory goes through slots") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu, {many_pieces(), some_pieces()});
  const size_t descriptors = open_descriptors(*gpu);
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
  gpu->after_export = [&] {
    // The last one of the first round: what follows is on its way already.
    if (++exported == 64 + static_cast<int>(some_pieces().size())) limit.emplace(kMost);
  };
  const auto statuses = register_all(world, slabs);
  limit.reset();
  taken.clear();
  gpu->after_export = {};
  for (const Status& status : statuses) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(status.message().find("raise it with ulimit -n") != std::string::npos);
    CHECK(status.message().find("receiving descriptors") != std::string::npos);
    CHECK(status.to_string() == statuses[0].to_string());
  }
  CHECK(open_descriptors(*gpu) == descriptors);
  check_goes_through_slots(world, slabs, *gpu);
  require_registered(world, slabs);
  compare(world, slabs, {chosen_direct(world)});
  CHECK(was_told(*gpu, slabs.begin(0)));
}

TEST_CASE("Whichever call of CUDA fails while mapped memory is registered, all ranks learn of it") {
  int calls = 0;
  const size_t before = descriptors_afterwards();
  for (int fail_at = -1; fail_at < calls || fail_at < 0; ++fail_at) {
    const auto gpu = make_gpu();
    {
      const Installed installed(gpu);
      World world(gpu, 2, roomy_config());
      REQUIRE(world.all_created());
      Slabs slabs(world, *gpu, {some_pieces(), some_pieces()});
      const size_t descriptors = open_descriptors(*gpu);
      gpu->calls = 0;
      gpu->fail_at = fail_at;
      const auto statuses = register_all(world, slabs);
      const bool failed = gpu->calls > fail_at && fail_at >= 0;
      gpu->fail_at = -1;
      if (fail_at < 0) calls = gpu->calls;
      INFO("call " << fail_at << " of " << calls << ": " << statuses[0].to_string() << "; "
                   << statuses[1].to_string());
      CHECK(statuses[0].to_string() == statuses[1].to_string());
      CHECK(open_descriptors(*gpu) == descriptors);
      CHECK(descriptors_on_their_way() == 0);
      if (fail_at < 0) CHECK(statuses[0].ok());
      if (!statuses[0].ok()) {
        CHECK(failed);
        check_goes_through_slots(world, slabs, *gpu);
        require_registered(world, slabs);
        compare(world, slabs, {chosen_direct(world)});
      }
    }
    CHECK(gpu->alive() == 0);
    CHECK(open_descriptors(*gpu) == before);
  }
  REQUIRE(calls > 40);
}

TEST_CASE("A rank that goes away while mapped memory is registered is named, and nothing is left") {
  const DescriptorLimit enough(kEnough);
  const size_t before = descriptors_afterwards();
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 3, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu, std::vector<Sizes>(3, many_pieces()));
    const size_t descriptors = open_descriptors(*gpu);
    thread_local bool goes = false;
    gpu->after_export = [&] {
      if (goes) throw std::runtime_error("this rank has had enough");
    };
    const auto statuses = on_all(world, [&](int rank) {
      goes = rank == 1;
      const Status status = world[rank].register_memory(slabs.begin(rank), kSlab);
      if (rank == 1) world.leave(1);
      return status;
    });
    CHECK(statuses[1].message() == "this rank has had enough");
    for (const int rank : {0, 2}) {
      INFO(statuses[static_cast<size_t>(rank)].to_string());
      CHECK_FALSE(statuses[static_cast<size_t>(rank)].ok());
      CHECK_FALSE(world[rank].status().ok());
    }
    CHECK(open_descriptors(*gpu) <= descriptors);
    gpu->after_export = {};
    world.leave(0);
    world.leave(2);
  }
  CHECK(gpu->alive() == 0);
  CHECK(open_descriptors(*gpu) == before);
}

#if !defined(__SANITIZE_THREAD__)
/// A process that is a rank, with memory of many pieces, all of which say what the rank is.
struct Alone {
  std::shared_ptr<FakeGpu> gpu = make_gpu(0);
  const Installed installed{gpu};
  Stream stream = *gpu->create_stream();
  std::optional<Communicator> ranks;
  std::byte* base = nullptr;

  Alone(const TempDirectory& directory, int rank, int size) {
    Config config = testing::world_config(directory.path(), rank, size, roomy_config());
    config.device = rank % 2;
    auto made = Communicator::create(config);
    testing::expect_ok(made.status(), "create");
    ranks = std::move(*made);
    base = gpu->create_mapped(many_pieces(), rank % 2);
  }
  ~Alone() {
    ranks.reset();
    gpu->destroy_mapped(base);
    (void)gpu->destroy_stream(stream);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
};

TEST_CASE("Processes reach each other's mapped memory by descriptors") {
  constexpr int kRanks = 3, kCount = 2000;
  const TempDirectory directory;
  testing::ForkGang gang(kRanks, [&](int rank, testing::Link&) {
    Alone self(directory, rank, kRanks);
    const size_t descriptors = open_descriptors(*self.gpu);
    for (int turn = 0; turn < 2; ++turn) {
      testing::expect_ok(self.ranks->register_memory(self.base + 100, kSlab), "register");
      testing::expect_eq(open_descriptors(*self.gpu), descriptors, "descriptors");
      testing::expect_eq(self.gpu->mapped_pieces(), 2 * many_pieces().size(), "mapped");
      auto* const data = reinterpret_cast<int32_t*>(self.base + 104);
      for (int i = 0; i < kCount; ++i) data[i] = i + 7 * rank;
      CallOptions options;
      options.stream = self.stream;
      options.algorithm = Algorithm::kTwoShotDirect;
      self.gpu->forget_told();
      testing::expect_ok(
          self.ranks->all_reduce(data, data, kCount, DataType::kInt32, ReduceOp::kSum, options),
          "all-reduce");
      testing::expect_ok(self.gpu->synchronize(self.stream), "synchronize");
      testing::expect_ok(self.ranks->status(), "status");
      for (int i = 0; i < kCount; ++i) testing::expect_eq(data[i], 3 * i + 21, "sum");
      testing::expect(was_told(*self.gpu, data), "direct");
      testing::expect_ok(self.ranks->unregister_memory(self.base + 100), "unregister");
      testing::expect_eq(self.gpu->mapped_pieces(), size_t{0}, "mapped after the end");
      testing::expect_eq(open_descriptors(*self.gpu), descriptors, "descriptors after the end");
    }
  });
  for (const auto& result : gang.join()) {
    INFO(result.message);
    CHECK(result.ok);
  }
}

TEST_CASE("A process that is killed while mapped memory is registered is named to the others") {
  constexpr int kRanks = 3;
  const TempDirectory directory;
  testing::ForkGang gang(kRanks, [&](int rank, testing::Link& link) {
    Alone self(directory, rank, kRanks);
    const size_t descriptors = open_descriptors(*self.gpu);
    int exported = 0;
    self.gpu->after_export = [&] {
      if (rank != 1 || ++exported < 100) return;  // in a later round
      link.announce("exporting");
      link.await("nothing");
    };
    const Status status = self.ranks->register_memory(self.base, kAll);
    testing::expect(status.code() == Code::kPeerDied, status.to_string());
    testing::expect(status.message().find("rank 1") != std::string::npos, status.to_string());
    testing::expect(open_descriptors(*self.gpu) <= descriptors, "descriptors");
    self.ranks.reset();
    testing::expect_eq(self.gpu->mapped_pieces(), size_t{0}, "mapped");
  });
  gang.await(1, "exporting");
  gang.kill(1, SIGKILL);
  const auto results = gang.join();
  for (const size_t rank : {0, 2}) {
    INFO(results[rank].message);
    CHECK(results[rank].ok);
  }
}
#endif

}  // namespace
}  // namespace rondo::device::test
