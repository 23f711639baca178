// Plain memory of other processes, copied by the kernel: when it is used, when it is not, and what
// happens when such a copy fails. That its results are right, collectives_test shows: it forces
// every algorithm on plain memory, too.
#include "transport/shm/process_copy.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "comm/algorithms/algorithm.hpp"
#include "comm/tuner/profile_file.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

constexpr size_t kLarge = size_t{1} << 18;  // elements

/// A machine on which copies by the kernel are worth a system call from some size on.
struct DearSlots {
  TempDirectory folder;
  Config config = with(&Config::links, folder.path() + "/links.json");
  DearSlots() {
    tuner::LinkProfile profile = tuner::shared_memory_profile();
    profile.slot_us_per_byte = 7e-5;
    std::ofstream(config.links) << tuner::to_json_text(profile);
  }
};

bool is_direct(Algorithm algorithm) { return algorithms::traits_of(algorithm).needs.references; }

/// The last third is no memory.
class EndMissing {
 public:
  explicit EndMissing(size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    expect(base_ != MAP_FAILED, "no memory");
    expect(mprotect(data() + bytes / 3 * 2, bytes / 3, PROT_NONE) == 0, "mprotect");
  }
  ~EndMissing() { munmap(base_, bytes_); }
  EndMissing(const EndMissing&) = delete;
  EndMissing& operator=(const EndMissing&) = delete;
  char* data() const { return static_cast<char*>(base_); }

 private:
  size_t bytes_;
  void* base_;
};

// Whether the kernel lets one process copy from another: a container or Yama may forbid it, and then
// nothing is tested here. Asked of the kernel and not of rondo, which is what is tested.
bool is_possible() {
  const transport::shm::Probe parent = transport::shm::own_probe();
  const auto child = run_ranks(How::kForks, 1, [&](int) {
    uint64_t word = 0;
    const iovec here{.iov_base = &word, .iov_len = sizeof(word)};
    const iovec there{.iov_base = reinterpret_cast<void*>(parent.address), .iov_len = sizeof(word)};
    expect(process_vm_readv(parent.pid, &here, 1, &there, 1, 0) == sizeof(word), "refused");
  });
  if (!child[0].ok) WARN("the kernel does not copy between processes here: nothing is tested");
  return child[0].ok;
}

/// An all_to_all of kLarge elements a block, and its results.
void exchange(Communicator& comm, Buffer& in, Buffer& out) {
  const auto me = static_cast<size_t>(comm.rank()), ranks = static_cast<size_t>(comm.size());
  fill(in, 0, ranks * kLarge, kFloat, ReduceOp::kSum, comm.rank());
  expect_ok(comm.all_to_all(in.data(), out.data(), kLarge, kFloat), "all_to_all");
  for (size_t from = 0; from < ranks; ++from) {
    check(
        out, from * kLarge, kLarge, kFloat,
        [&](size_t i) {
          return contribution(static_cast<int>(from), me * kLarge + i, ReduceOp::kSum);
        },
        "all_to_all");
  }
}

transport::shm::PeerProcess process_of(pid_t pid) {
  const auto pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  REQUIRE(pidfd >= 0);
  return {.pid = pid, .pidfd = std::make_shared<transport::UniqueFd>(pidfd)};
}

}  // namespace

TEST_CASE("signals do not make a process that lives count as ended") {
  if (!is_possible()) return;
  const transport::shm::PeerProcess self = process_of(getpid());
  const transport::shm::Probe probe = transport::shm::own_probe();
  static std::atomic<int> came{0};
  struct sigaction counts = {}, before = {};
  counts.sa_handler = [](int) { ++came; };
  sigaction(SIGALRM, &counts, &before);
  const itimerval every_100_us{.it_interval = {0, 100}, .it_value = {0, 100}}, never{};
  setitimer(ITIMER_REAL, &every_100_us, nullptr);
  long failures = 0;
  while (came < 5000) failures += transport::shm::reaches(self, probe) ? 0 : 1;
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  CHECK(failures == 0);
}

TEST_CASE_METHOD(
    DearSlots, "large copies of plain memory go by the kernel, small ones and reductions do not") {
  if (!is_possible()) return;
  for (const int n : {2, 3}) {
    run_ok(How::kForks, n, config, [](Communicator& comm) {
      const auto algorithm = [&](Collective collective, size_t count) {
        return comm.plan(collective, count, kFloat).algorithm;
      };
      for (const Collective c : {Collective::kAllGather, Collective::kAllToAll}) {
        expect(is_direct(algorithm(c, kLarge)), std::string(name(c)) + " through slots");
        expect(!is_direct(algorithm(c, 64)), std::string(name(c)) + " of little by the kernel");
      }
      expect(!is_direct(algorithm(Collective::kAllReduce, kLarge)), "all_reduce by the kernel");
      // Bytes that no slot has seen are counted all the same.
      Buffer in(kLarge * 4, false), out(kLarge * 4 * static_cast<size_t>(comm.size()), false);
      const uint64_t before = comm.stats().bytes_sent;
      expect_ok(comm.all_gather(in.data(), out.data(), kLarge, kFloat), "all_gather");
      expect_eq(comm.stats().bytes_sent - before,
                kLarge * 4 * static_cast<uint64_t>(comm.size() - 1), "bytes sent");
    });
  }
}

TEST_CASE_METHOD(DearSlots, "RONDO_CMA=0 on any rank switches it off on all") {
  if (!is_possible()) return;
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 3, [&](int rank) {
    if (rank == 1) setenv("RONDO_CMA", "0", 1);
    Communicator comm = created(world_config(directory.path(), rank, 3, config));
    expect(!is_direct(comm.plan(Collective::kAllGather, kLarge, kFloat).algorithm),
           "by the kernel");
    Buffer in(kLarge * 4, false), out(kLarge * 12, false);
    expect_ok(comm.all_gather(in.data(), out.data(), kLarge, kFloat), "all_gather");
    const Status forced = comm.all_gather(in.data(), out.data(), kLarge, kFloat,
                                          {.algorithm = Algorithm::kTwoShotDirect});
    expect_error(forced, Code::kUnavailable);
    setenv("RONDO_CMA", "yes", 1);
    const Config alone = world_config(directory.path(), 0, 1);
    expect_contains(Communicator::create(alone).status().message(), "RONDO_CMA is 'yes'");
  }));
}

TEST_CASE_METHOD(DearSlots, "some ranks' buffers are library memory, some plain") {
  if (!is_possible()) return;
  run_ok(How::kForks, 3, config, [&](Communicator& comm) {
    for (int library = 0; library < 8; ++library) {
      const bool mine = (library >> comm.rank() & 1) != 0;
      Buffer in(3 * kLarge * 4, mine), out(3 * kLarge * 4, mine);
      exchange(comm, in, out);
    }
  });
}

TEST_CASE_METHOD(DearSlots, "an all_to_all is direct unless some rank is in place") {
  for (const bool library : {true, false}) {
    if (!library && !is_possible()) continue;
    run_ok(How::kForks, 2, config, [&](Communicator& comm) {
      expect(is_direct(comm.plan(Collective::kAllToAll, kLarge, kFloat, library).algorithm),
             "through slots");
      Buffer in(2 * kLarge * 4, library), other(2 * kLarge * 4, library);
      for (int in_place = 0; in_place < 4; ++in_place) {
        Buffer& out = (in_place >> comm.rank() & 1) != 0 ? in : other;
        for (int round = 0; round < 3; ++round) exchange(comm, in, out);
      }
    });
  }
}

TEST_CASE("a buffer that is shorter than the call says is an error on every rank, and no crash") {
  if (!is_possible()) return;
  for (const bool writes : {true, false}) {
    run_ok(How::kForks, 3, [&](Communicator& comm) {
      Buffer in(kLarge * 4, false), out(kLarge * 12, false);
      const EndMissing missing(kLarge * 12);
      const CallOptions direct{.algorithm =
                                   writes ? Algorithm::kTwoShotDirect : Algorithm::kOneShotDirect};
      const bool wrong = comm.rank() == 1;
      void* const to = wrong ? missing.data() : static_cast<void*>(out.data());
      // Rank 1 does not touch the missing part itself: of a broadcast it is the root.
      const Status status =
          writes ? comm.all_gather(in.data(), to, kLarge, kFloat, direct)
                 : comm.broadcast(wrong ? to : nullptr, to, 3 * kLarge, kFloat, 1, direct);
      expect_error(status, Code::kSystem, "rank 1 passed to", "Bad address", "RONDO_CMA=0");
    });
  }
}

TEST_CASE("where a rank's own buffer is short, both ranks of the copy are named") {
  if (!is_possible()) return;
  run_ok(How::kForks, 3, [&](Communicator& comm) {
    Buffer buffer(kLarge * 12, false);
    const EndMissing missing(kLarge * 12);
    void* const out = comm.rank() == 2 ? missing.data() : static_cast<void*>(buffer.data());
    const Status status =
        comm.broadcast(out, out, 3 * kLarge, kFloat, 1, {.algorithm = Algorithm::kOneShotDirect});
    if (comm.rank() == 0 && status.ok()) return;  // it had its copy, and waits for no other reader
    expect_error(status, Code::kSystem,
                 "rank 2 cannot copy between its buffers and those that rank 1 ");
  });
}

TEST_CASE("who waits for a copy from a killed process hears of it") {
  if (!is_possible()) return;
  WorldGang gang(3, [&](Communicator& comm, Link& link) {
    Buffer in(16 * kLarge * 4, false), out(16 * kLarge * 12, false);
    link.announce("going");
    const Status status =
        until_failure([&] { return comm.all_gather(in.data(), out.data(), 16 * kLarge, kFloat); });
    expect_error(status, Code::kPeerDied, "rank 1");
  });
  gang.await_all("going");
  const auto board = board_of(gang.pid(0));
  await("a few operations", [&] { return board.view().state(1).finished.load() >= 3; });
  gang.kill(1, SIGKILL);
  gang.require_ok({1});
}

TEST_CASE("a process is reached only if it is the one that is meant") {
  transport::shm::Probe probe = transport::shm::own_probe();
  const transport::shm::PeerProcess self{.pid = probe.pid};
  CHECK(transport::shm::reaches(self, probe));
  probe.word ^= 1;
  CHECK(!transport::shm::reaches(self, probe));
  probe = transport::shm::own_probe();
  probe.address = 8;
  CHECK(!transport::shm::reaches(self, probe));
}

TEST_CASE("a process is reached until its last thread has ended") {
  if (!is_possible()) return;
  const transport::shm::Probe probe = transport::shm::own_probe();
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] { pause(); }).detach();
    syscall(SYS_exit, 0);  // this thread alone, unlike _exit
  }
  const auto process = process_of(child);
  await("the end of the first thread", [&] {
    std::ifstream status("/proc/" + std::to_string(child) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(status), {}};
    return text.find(") Z ") != std::string::npos;
  });
  CHECK(transport::shm::reaches(process, probe));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(!transport::shm::reaches(process, probe));
}

TEST_CASE("a process that has the number of one that has ended is neither read nor written") {
  if (!is_possible()) return;
  static uint64_t word = 1;
  const auto address = reinterpret_cast<uint64_t>(&word);
  uint64_t here = 2;
  auto* const bytes = reinterpret_cast<std::byte*>(&here);
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  transport::shm::PeerProcess process = process_of(ended);
  waitpid(ended, nullptr, 0);
  const pid_t other = fork();
  if (other == 0) {
    while (word == 1) pause();
    _exit(1);
  }
  process.pid = other;  // as if the kernel had given it the number
  CHECK(transport::shm::copy_from_process(process, address, bytes, sizeof here) == ESRCH);
  CHECK(transport::shm::copy_to_process(process, address, bytes, sizeof here) == ESRCH);
  uint64_t there = 0;
  CHECK(transport::shm::copy_from_process({.pid = other}, address,
                                          reinterpret_cast<std::byte*>(&there), sizeof there) == 0);
  CHECK(there == 1);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

}  // namespace rondo::testing
