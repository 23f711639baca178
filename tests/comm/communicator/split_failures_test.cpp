// Deaths and aborts while other ranks make communicators from communicators: every rank learns of
// them at once, and not when the meeting's time is over.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "comm/base/clock.hpp"
#include "tests/comm/communicator/world.hpp"
#include "tests/harness/sanitized.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::testing {
namespace {

using transport::UniqueFd;

void expect_says(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "'" + text + "' does not say '" + part + "'");
}

/// What the victim leaves for the others: when it is killed, and its pid.
struct Death {
  std::atomic<int64_t> at_ns{0};
  std::atomic<int> pid{0};
};

class SharedDeath {
 public:
  SharedDeath()
      : death_(new (mmap(nullptr, sizeof(Death), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Death) {}
  ~SharedDeath() { munmap(death_, sizeof(Death)); }
  SharedDeath(const SharedDeath&) = delete;
  SharedDeath& operator=(const SharedDeath&) = delete;
  Death& operator*() const { return *death_; }

 private:
  Death* death_;
};

int heir_pipe[2];  // the heir ends when no other process can write to it

/// A fork without exec, which keeps the dead process's sockets open, but not the harness's.
[[noreturn]] void leave_heir_and_die(int) {
  if (_Fork() == 0) {
    for (int fd = 3; fd < 1024; ++fd) {
      int type = 0;
      socklen_t size = sizeof type;
      if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) {
        close(fd);
      }
    }
    close(heir_pipe[1]);
    char byte;
    while (read(heir_pipe[0], &byte, 1) > 0) {
    }
    _exit(0);
  }
  raise(SIGKILL);
  _exit(1);
}

/// Kills this process after `after_us`, wherever it is then.
void die_in(int64_t after_us, bool leaves_heir, Death& death) {
  if (leaves_heir) signal(SIGUSR1, leave_heir_and_die);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = leaves_heir ? SIGUSR1 : SIGKILL;
  timer_t timer;
  expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  const int64_t at_ns = base::now_ns() + after_us * 1000;
  death.pid = getpid();
  death.at_ns = at_ns;
  itimerspec when{};
  when.it_value = {.tv_sec = at_ns / 1'000'000'000, .tv_nsec = at_ns % 1'000'000'000};
  expect(timer_settime(timer, TIMER_ABSTIME, &when, nullptr) == 0, "timer_settime");
}

struct Moment {
  int size, victim;
  bool splits;  // or duplicates
  bool leaves_heir;
  int64_t after_us;
};

void die_at(const Moment& moment) {
  INFO(moment.size << " ranks, rank " << moment.victim << " dies after " << moment.after_us
                   << " us of " << (moment.splits ? "splits" : "duplicates")
                   << (moment.leaves_heir ? ", and leaves a fork" : ""));
  const TempDirectory directory;
  const SharedDeath shared;
  REQUIRE(pipe(heir_pipe) == 0);
  const UniqueFd read_end(heir_pipe[0]), write_end(heir_pipe[1]);
  auto results = run_ranks(How::kForks, moment.size, [&](int rank) {
    auto comm = Communicator::create(world_config(directory.path(), rank, moment.size));
    expect(comm.ok(), comm.status().to_string());
    Status status = comm->barrier();
    Death& death = *shared;
    if (rank == moment.victim) die_in(moment.after_us, moment.leaves_heir, death);
    while (status.ok()) {
      status = moment.splits ? comm->split(rank % 2, -rank).status() : comm->duplicate().status();
    }
    const double late = static_cast<double>(base::now_ns() - death.at_ns.load()) * 1e-9;
    expect(status.code() == Code::kPeerDied, status.to_string());
    expect_says(status.message(), "rank " + std::to_string(moment.victim) + " (pid " +
                                      std::to_string(death.pid.load()) + ")");
    expect(late < 5, "took " + std::to_string(late) + " s: " + status.to_string());
    expect(comm->barrier().code() == Code::kPeerDied, "not sticky");
  });
  results.erase(results.begin() + moment.victim);
  require_all_ok(results);
}

/// Of each kind; RONDO_TEST_MOMENTS for more.
int moments() {
  const char* const text = std::getenv("RONDO_TEST_MOMENTS");
  return text != nullptr ? std::atoi(text) : 8;
}

/// So many descriptors and no more: whatever needs another one fails.
void allow_no_more_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 0;
  expect(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

}  // namespace

TEST_CASE("a rank killed at any moment of a split or duplicate is named by all others at once") {
  std::mt19937 random(20260711);
  for (const bool leaves_heir : {false, true}) {
    for (const bool splits : {false, true}) {
      for (int i = 0; i < moments(); ++i) {
        const int size =
            splits ? 4 + static_cast<int>(random() % 2) : 2 + static_cast<int>(random() % 3);
        die_at({.size = size,
                .victim = static_cast<int>(random() % static_cast<unsigned>(size)),
                .splits = splits,
                .leaves_heir = leaves_heir,
                .after_us = static_cast<int64_t>(random() % 30'000)});
      }
    }
  }
}

TEST_CASE("a member that cannot take part in a split or duplicate is named by all others at once") {
  if (kSanitized)
    return;  // the undefined behaviour sanitizer makes a pipe to look at an object's type
  for (const bool splits : {false, true}) {
    for (const int lame : {0, 1, 2}) {
      INFO("rank " << lame << " of 3 cannot take part in "
                   << (splits ? "the split" : "the duplicate"));
      require_all_ok(run_world(How::kForks, 3, [&](Communicator& comm) {
        const auto make = [&] {
          return splits ? comm.split(0, -comm.rank()).status() : comm.duplicate().status();
        };
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        if (comm.rank() == lame) allow_no_more_descriptors();
        const Status status = make();
        expect(status.code() == Code::kResourceExhausted, status.to_string());
        if (comm.rank() == lame) {
          expect_says(status.message(), "RLIMIT_NOFILE");
          expect(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
        } else {
          expect_says(status.message(), "rank " + std::to_string(lame) + " (pid ");
          expect_says(status.message(),
                      std::string(" cannot take part in this ") + (splits ? "split" : "duplicate"));
        }
        // The communicator itself goes on, and can be split again.
        expect_ok(comm.barrier(), "barrier");
        expect_ok(make(), "the next one");
      }));
    }
  }
}

TEST_CASE("an abort at any moment of splits and duplicates is what every rank returns") {
  std::mt19937 random(20260712);
  for (const How how : kHows) {
    for (int i = 0; i < moments(); ++i) {
      const std::chrono::microseconds moment(random() % 20'000);
      require_all_ok(run_world(how, 3, [&](Communicator& comm) {
        std::thread aborter;
        if (comm.rank() == i % 3) {
          aborter = std::thread([&] {
            std::this_thread::sleep_for(moment);
            comm.abort("enough");
          });
        }
        Status status;
        for (int turn = 0; status.ok(); ++turn) {
          status = turn % 2 == 0 ? comm.duplicate().status() : comm.split(0, 0).status();
        }
        if (aborter.joinable()) aborter.join();
        expect_eq(status.to_string(),
                  Status(Code::kAborted, "rank " + std::to_string(i % 3) + " aborted: enough")
                      .to_string(),
                  "the error");
      }));
    }
  }
}

}  // namespace rondo::testing
