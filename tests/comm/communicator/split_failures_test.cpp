// Deaths and aborts while other ranks make communicators from communicators: every rank learns of
// them at once, and not when the meeting's time is over.
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "comm/base/clock.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "tests/harness/sanitized.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::testing {
namespace {

using transport::UniqueFd;

/// What the victim leaves for the others: when it is killed, and its pid.
struct Death {
  std::atomic<int64_t> at_ns{0};
  std::atomic<int> pid{0};
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

/// Kills this process after `after_us`.
void die_in(int64_t after_us, bool leaves_heir, Death& death) {
  if (leaves_heir) signal(SIGUSR1, leave_heir_and_die);
  death.pid = getpid();
  death.at_ns = base::now_ns() + after_us * 1000;
  signal_self_at(death.at_ns, leaves_heir ? SIGUSR1 : SIGKILL);
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
  const Shared<Death> death;
  REQUIRE(pipe(heir_pipe) == 0);
  const UniqueFd read_end(heir_pipe[0]), write_end(heir_pipe[1]);
  const auto results = run_world(How::kForks, moment.size, [&](Communicator& comm) {
    const int rank = comm.rank();
    Status status = comm.barrier();
    if (rank == moment.victim) die_in(moment.after_us, moment.leaves_heir, *death);
    while (status.ok()) {
      status = moment.splits ? comm.split(rank % 2, -rank).status() : comm.duplicate().status();
    }
    const double late = static_cast<double>(base::now_ns() - death->at_ns.load()) * 1e-9;
    expect_error(status, Code::kPeerDied,
                 "rank " + std::to_string(moment.victim) + " (pid " +
                     std::to_string(death->pid.load()) + ")");
    expect(late < 5, "took " + std::to_string(late) + " s: " + status.to_string());
    expect_error(comm.barrier(), Code::kPeerDied);
  });
  require_ok_but({moment.victim}, results);
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
      for (int i = 0; i < moments(8); ++i) {
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
      run_ok(How::kForks, 3, [&](Communicator& comm) {
        const auto make = [&] {
          return splits ? comm.split(0, -comm.rank()).status() : comm.duplicate().status();
        };
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        if (comm.rank() == lame) allow_no_more_descriptors();
        const Status status = make();
        if (comm.rank() == lame) {
          expect_error(status, Code::kResourceExhausted, "RLIMIT_NOFILE");
          expect(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
        } else {
          expect_error(
              status, Code::kResourceExhausted, "rank " + std::to_string(lame) + " (pid ",
              std::string(" cannot take part in this ") + (splits ? "split" : "duplicate"));
        }
        // The communicator itself goes on, and can be split again.
        expect_ok(comm.barrier(), "barrier");
        expect_ok(make(), "the next one");
      });
    }
  }
}

TEST_CASE("an abort at any moment of splits and duplicates is what every rank returns") {
  std::mt19937 random(20260712);
  for (const How how : kHows) {
    for (int i = 0; i < moments(8); ++i) {
      const std::chrono::microseconds moment(random() % 20'000);
      run_ok(how, 3, [&](Communicator& comm) {
        std::jthread aborter([&] {
          if (comm.rank() != i % 3) return;
          std::this_thread::sleep_for(moment);
          comm.abort("enough");
        });
        Status status;
        for (int turn = 0; status.ok(); ++turn) {
          status = turn % 2 == 0 ? comm.duplicate().status() : comm.split(0, 0).status();
        }
        const std::string words = "rank " + std::to_string(i % 3) + " aborted: enough";
        expect_eq(status.to_string(), Status(Code::kAborted, words).to_string(), "the error");
      });
    }
  }
}

}  // namespace rondo::testing
