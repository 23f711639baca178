// Communicator::shrink(): ranks that are left of a communicator go on without those that are killed,
// stopped or absent, whenever that happens, and every result is right.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <random>
#include <utility>

#include "comm/base/clock.hpp"
#include "rondo/log.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000};

bool spans_hosts() { return meeting_place("d") != "d"; }

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += std::to_string(rank) + " ";
  return text;
}

/// The communicator that `comm` shrinks to; these of its ranks are left.
Communicator shrink_to(Communicator& comm, const std::vector<int>& left) {
  Communicator made = expect_value(comm.shrink(kPatience), "shrink");
  expect_eq(text_of(made.former_ranks()), text_of(left), "former ranks");
  expect_eq(made.size(), static_cast<int>(left.size()), "size");
  expect_eq(left[static_cast<size_t>(made.rank())], comm.rank(), "rank");
  return made;
}

void use(Communicator& comm) {
  calls::everything(comm, {.count = 37});
  calls::everything(comm, {.count = 5000, .in_place = true, .library = !spans_hosts()});
  expect_ok(comm.barrier(), "barrier");
}

void die_in(int64_t after_us) { signal_self_at(base::now_ns() + after_us * 1000, SIGKILL); }

Communicator shrink_and_use(Communicator& comm, const std::vector<int>& left) {
  Communicator made = shrink_to(comm, left);
  use(made);
  return made;
}

/// All-reduces until one fails.
Status reduce_until_failure(Communicator& comm) {
  std::vector<float> values(100'000, 1);
  return until_failure([&] { return comm.all_reduce(values, values, ReduceOp::kMax); });
}

enum class When { kBefore, kInside };

void kill_ranks(int size, const std::vector<int>& victims, When when) {
  INFO(size << " ranks; killed: " << text_of(victims) << (when == When::kInside ? "inside" : ""));
  const std::vector<int> left = all_but(victims, size);
  const auto results = run_world(How::kForks, size, [&](Communicator& comm) {
    const int rank = comm.rank();
    // Connections exist both ways: UCX 1.13 ends the process of a rank whose peer dies while it opens
    // its own (tcp_ep.c:478). A rank that is through may die while others are inside.
    std::vector<int32_t> words(static_cast<size_t>(size));
    (void)comm.all_to_all(words.data(), words.data(), 1, kInt);
    if (std::find(left.begin(), left.end(), rank) == left.end()) {
      if (when == When::kBefore) raise(SIGKILL);
      die_in(3000 + 100 * rank);
    }
    const Status failed = reduce_until_failure(comm);
    expect_error(failed, Code::kPeerDied);
    const int64_t began = base::now_ns();
    Communicator shrunk = shrink_to(comm, left);
    const auto took_us = (base::now_ns() - began) / 1000;
    expect(took_us < 8'000'000, "shrink took " + std::to_string(took_us) + " us");
    use(shrunk);
    expect_eq(comm.barrier().to_string(), failed.to_string(), "the old communicator");
  });
  require_ok_but(victims, results);
}

/// Entries of a folder of this process's: "task" are its threads, "fd" its descriptors.
int entries_of(const std::string& folder) {
  const std::filesystem::directory_iterator all("/proc/self/" + folder);
  return static_cast<int>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_CASE("ranks killed before and inside an all-reduce are left out, and all results are right") {
  // On several hosts each of these deaths takes ranks two seconds to agree on (control/README.md).
  for (const int size : spans_hosts() ? std::vector<int>{2, 4} : std::vector<int>{2, 3, 4, 5, 7}) {
    std::vector<std::vector<int>> cases{{0}, {size - 1}};
    if (size > 2) cases.push_back({size / 2});
    if (size > 3) cases.insert(cases.end(), {{0, 1}, {0, size - 1}, {size / 2, size - 1}});
    for (size_t i = 0; i < cases.size(); ++i) {
      kill_ranks(size, cases[i], i % 2 == 0 ? When::kInside : When::kBefore);
    }
  }
  kill_ranks(5, {1, 3}, When::kInside);  // a whole host, where ranks are on two
  if (spans_hosts()) return;
  kill_ranks(4, {0, 2}, When::kInside);
  kill_ranks(4, {0, 1, 2}, When::kInside);
}

TEST_CASE("a rank killed at any moment of a shrink is left out") {
  std::mt19937 random(20261125);
  for (int i = 0; i < moments(spans_hosts() ? 5 : 12); ++i) {
    const int size = 3 + static_cast<int>(random() % 3);
    const int victim = i % 2 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(size));
    const auto after_us = static_cast<int64_t>(random() % (spans_hosts() ? 200'000 : 60'000));
    INFO(size << " ranks, rank " << victim << " dies after " << after_us << " us of shrinks");
    const std::vector<int> left = all_but({victim}, size);
    const TempDirectory directory;
    const auto results = run_ranks(How::kForks, size, [&](int rank) {
      Communicator comm = created(world_config(directory.path(), rank, size));
      if (rank == victim) die_in(after_us);
      while (comm.size() == size) {
        comm.abort("again");
        Communicator shrunk = expect_value(comm.shrink(kPatience), "shrink");
        expect_eq(text_of(shrunk.former_ranks()),
                  text_of(shrunk.size() == size ? all_but({}, size) : left), "former ranks");
        comm = std::move(shrunk);  // while others may still shrink the old one
      }
      expect_eq(left[static_cast<size_t>(comm.rank())], rank, "rank");
      use(comm);
    });
    require_ok_but({victim}, results);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE(
    "a rank that comes late to the last exchange of a shrink goes nowhere without the others") {
  constexpr int kRanks = 4;
  constexpr milliseconds kShort{2000};
  WorldGang gang(kRanks, [&](Communicator& comm, Link& link) {
    const int rank = comm.rank();
    const bool is_late = rank == kRanks - 1;
    if (is_late) {
      set_log_level(LogLevel::kInfo);
      set_log_callback([&, waits = true](LogLevel, std::string_view line) mutable {
        // The last word before that exchange.
        if (line.find(", shrunk: rank") == std::string_view::npos) return;
        if (std::exchange(waits, false)) link.await("the others have gone on");
      });
    }
    comm.abort("again");
    auto made = comm.shrink(kShort);
    if (!is_late) {
      expect_ok(made.status(), "shrink");
      expect_eq(text_of(made->former_ranks()), std::string("0 1 2 "), "former ranks");
      link.announce("goes on");
      link.await("the end");
      use(*made);
      return;
    }
    for (int turn = 0; turn < 2; ++turn) {
      expect_error(made.status(), Code::kTimeout);
      made = comm.shrink(kShort);
    }
  });
  gang.await_each({0, 1, 2}, "goes on");
  gang.tell(kRanks - 1, "the others have gone on");
  gang.await_end(kRanks - 1);
  gang.tell_each({0, 1, 2}, "the end");
  gang.require_ok();
}

// The recipe of docs/shrink.md.
TEST_CASE("a new process takes the place of a rank that died, by a new communicator") {
  constexpr int kRanks = 4;
  constexpr size_t kParameters = 500;
  for (const int victim : {2, 0}) {
    INFO("rank " << victim << " dies");
    const TempDirectory directory;
    // The last process is not there before the others have shrunk.
    Gang gang(kRanks + 1, [&](int process, Link& link) {
      std::vector<float> state(kParameters);
      Config config;
      if (process < kRanks) {
        Communicator comm = created(world_config(directory.path(), process, kRanks));
        expect_ok(comm.barrier(), "barrier");
        if (process == victim) raise(SIGKILL);
        expect_error(reduce_until_failure(comm), Code::kPeerDied);
        Communicator left = shrink_to(comm, all_but({victim}, kRanks));
        std::iota(state.begin(), state.end(), 0);
        config = world_config(directory.path(), left.rank(), kRanks);
        link.announce("shrunk");
      } else {
        link.await("join");
        config = world_config(directory.path(), kRanks - 1, kRanks);
      }
      config.name = "joined";
      Communicator joined = created(config);
      expect_ok(joined.broadcast(state.data(), state.data(), kParameters, kFloat, 0), "broadcast");
      for (size_t i = 0; i < kParameters; ++i) expect(state[i] == static_cast<float>(i), "state");
      use(joined);
      link.announce("used");
    });
    gang.await_each(all_but({victim}, kRanks), "shrunk");
    gang.tell(kRanks, "join");
    gang.require_ok({victim});
  }
}

TEST_CASE("after an abort with nobody dead a shrink keeps all ranks, and can be repeated") {
  run_each({4}, with(&Config::reproducible, true), [](Communicator& comm) {
    comm.abort("enough");
    Communicator second = shrink_and_use(comm, {0, 1, 2, 3});
    float one = 1;  // the settings are the old ones
    expect_error(
        second.all_reduce(&one, &one, 1, kFloat, ReduceOp::kSum, {.algorithm = Algorithm::kRing}),
        Code::kUnavailable, "rank order");
    // One that has not failed shrinks, too, and goes on.
    Communicator third = shrink_to(second, {0, 1, 2, 3});
    use(second);
    use(third);
    // And again from the first.
    Communicator fourth = shrink_and_use(comm, {0, 1, 2, 3});
    Communicator part = part_of(fourth, fourth.rank() % 2);
    expect_eq(part.former_ranks().size(), size_t{0}, "former ranks of a split");
    part.abort("part");
    (void)shrink_and_use(part, {0, 1});
  });
}

TEST_CASE("a world of one shrinks to one, without a place to meet") {
  require_all_ok(run_ranks(How::kThreads, 1, [](int) {
    Communicator comm = created(config_alone());
    Communicator second = shrink_to(comm, {0});
    Communicator third = shrink_and_use(second, {0});
    third.abort("enough");
    Communicator fourth = shrink_and_use(third, {0});
    Communicator part = part_of(fourth, 0);
    (void)shrink_and_use(part, {0});
  }));
}

TEST_CASE("a part of one rank, and what is left of a world, shrink again") {
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    Communicator part = part_of(comm, comm.rank());
    (void)shrink_and_use(part, {0});
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() == 0) return;
    Communicator alone = shrink_to(comm, {1});
    (void)shrink_and_use(alone, {0});
  });
}

TEST_CASE("a rank that has destroyed its communicator, or leaves it alone, is left out") {
  run_each({3}, [](Communicator& comm) {
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() == 1) return;
    (void)shrink_and_use(comm, {0, 2});
  });
}

TEST_CASE("a stopped rank is left out after patience, and gets an error when it continues") {
  for (const int stopped : {0, 1, 2}) {
    INFO("rank " << stopped << " of 3 is stopped");
    WorldGang gang(3, [&](Communicator& comm, Link& link) {
      const int rank = comm.rank();
      expect_ok(comm.barrier(), "barrier");
      link.announce("ready");
      link.await("go");
      if (rank != stopped) comm.abort("a rank is stopped");
      const int64_t began = base::now_ns();
      auto made = comm.shrink(400ms);
      const double took = static_cast<double>(base::now_ns() - began) * 1e-9;
      expect(took < 20, "took " + std::to_string(took) + " s");
      if (rank == stopped) {
        expect_error(made.status(), Code::kTimeout, "gone on without it");
      } else {
        expect_ok(made.status(), "shrink");
        expect_eq(text_of(made->former_ranks()), text_of(all_but({stopped}, 3)), "former ranks");
        use(*made);
      }
      link.announce("done");
      link.await("end");
    });
    gang.await_all("ready");
    gang.kill(stopped, SIGSTOP);
    const int64_t told = base::now_ns();
    gang.tell_each(all_but({stopped}, 3), "go");
    gang.await_each(all_but({stopped}, 3), "done");
    CHECK(base::now_ns() - told >= 400'000'000);
    gang.kill(stopped, SIGCONT);
    gang.tell(stopped, "go");
    gang.await(stopped, "done");
    gang.tell_all("end");
    gang.require_ok();
  }
}

TEST_CASE("two parts of the ranks never go on side by side") {
  // Ranks 1 and 3 wait for 0 and 2, which come when they have given up: neither pair has a majority
  // of the four, and only that with rank 0 may go on.
  for (const int late : {0, 1}) {
    WorldGang gang(4, [&](Communicator& comm, Link& link) {
      const int rank = comm.rank();
      expect_ok(comm.barrier(), "barrier");
      link.announce("ready");
      link.await("go");
      auto made = comm.shrink(300ms);
      if (rank % 2 == 0 && late == 1) {
        expect_ok(made.status(), "shrink");
        expect_eq(text_of(made->former_ranks()), std::string("0 2 "), "former ranks");
        use(*made);
      } else {
        expect_error(made.status(), Code::kTimeout,
                     late == 1 ? "gone on without it" : "did not come");
      }
      link.announce("done");
      link.await("end");
    });
    gang.await_all("ready");
    const std::vector<int> punctual{late == 0 ? 1 : 0, late == 0 ? 3 : 2};
    gang.tell_each(punctual, "go");
    gang.await_each(punctual, "done");
    if (late == 1) {
      gang.tell_each({1, 3}, "go");
      gang.await_each({1, 3}, "done");
    }
    const std::vector<int> gone = late == 0 ? std::vector<int>{0, 2} : std::vector<int>{};
    for (const int rank : gone) gang.kill(rank, SIGKILL);
    gang.tell_each(all_but(gone, 4), "end");
    gang.require_ok(gone);
  }
}

TEST_CASE("thirty shrinks leave no descriptor and no thread behind") {
  for (const How how : kHows) {
    run_ok(how, 3, [&](Communicator& first) {
      // UCX's TCP connections between two ranks are one or two.
      const int may_vary = spans_hosts() ? 3 : 0;
      std::vector<Communicator> comms;
      comms.push_back(std::move(first));
      int descriptors = 0, threads = 0;
      for (int i = 0; i < 30; ++i) {
        Communicator next = shrink_to(comms.back(), {0, 1, 2});
        int32_t sum = 1;
        expect_ok(next.all_reduce(&sum, &sum, 1, kInt), "all_reduce");
        expect_eq(sum, 3, "sum");
        comms.clear();
        comms.push_back(std::move(next));
        if (how == How::kThreads) continue;  // others make and close theirs meanwhile
        if (i == 2) {
          descriptors = entries_of("fd");
          threads = entries_of("task");
        }
        if (i < 3) continue;
        expect(entries_of("fd") <= descriptors + may_vary, "descriptors");
        expect(entries_of("task") <= threads, "threads");
      }
      use(comms.back());
    });
  }
}

TEST_CASE("a shrink in a group, and a patience that is none, are refused") {
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    expect_error(comm.shrink(milliseconds(-1)).status(), Code::kInvalidArgument);
    expect_ok(comm.group_start(), "group_start");
    expect_error(comm.shrink().status(), Code::kInvalidArgument);
    expect_ok(comm.group_end(), "group_end");
    use(comm);
  });
}

}  // namespace rondo::testing
