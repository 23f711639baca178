// Communicator::shrink(): ranks that are left of a communicator go on without those that are killed,
// stopped or absent, whenever that happens, and every result is right.
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <span>
#include <utility>

#include "comm/base/clock.hpp"
#include "rondo/log.hpp"
#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000};

bool spans_hosts() { return meeting_place("d") != "d"; }

void expect_says(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "'" + text + "' does not say '" + part + "'");
}

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += std::to_string(rank) + " ";
  return text;
}

std::vector<int> all_but(const std::vector<int>& gone, int size) {
  std::vector<int> left;
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(gone.begin(), gone.end(), rank) == gone.end()) left.push_back(rank);
  }
  return left;
}

/// The communicator that `comm` shrinks to; these of its ranks are left.
Communicator shrink_to(Communicator& comm, const std::vector<int>& left) {
  auto made = comm.shrink(kPatience);
  expect(made.ok(), "shrink: " + made.status().to_string());
  expect_eq(text_of(made->former_ranks()), text_of(left), "former ranks");
  expect_eq(made->size(), static_cast<int>(left.size()), "size");
  expect_eq(left[static_cast<size_t>(made->rank())], comm.rank(), "rank");
  return std::move(*made);
}

void use(Communicator& comm) {
  calls::everything(comm, {.count = 37});
  calls::everything(comm, {.count = 5000, .in_place = true, .library = !spans_hosts()});
  expect_ok(comm.barrier(), "barrier");
}

/// Kills this process after `after_us`, wherever it is then.
void die_in(int64_t after_us) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  itimerspec when{};
  when.it_value = {.tv_sec = after_us / 1'000'000, .tv_nsec = after_us % 1'000'000 * 1000 + 1};
  expect(timer_settime(timer, 0, &when, nullptr) == 0, "timer_settime");
}

/// All-reduces until one fails.
Status reduce_until_failure(Communicator& comm) {
  std::vector<float> values(100'000, 1);
  Status status;
  while (status.ok()) {
    status = comm.all_reduce(values.data(), values.data(), values.size(), DataType::kFloat32,
                             ReduceOp::kMax);
  }
  return status;
}

void require_left_ok(const std::vector<RankResult>& results, const std::vector<int>& left) {
  std::vector<RankResult> theirs;
  for (const int rank : left) theirs.push_back(results[static_cast<size_t>(rank)]);
  require_all_ok(theirs);
}

enum class When { kBefore, kInside };

void kill_ranks(int size, const std::vector<int>& victims, When when) {
  INFO(size << " ranks; killed: " << text_of(victims) << (when == When::kInside ? "inside" : ""));
  const std::vector<int> left = all_but(victims, size);
  const TempDirectory directory;
  const auto results = run_ranks(How::kForks, size, [&](int rank) {
    auto comm = Communicator::create(world_config(directory.path(), rank, size));
    expect(comm.ok(), comm.status().to_string());
    // Connections exist both ways: UCX 1.13 ends the process of a rank whose peer dies while it opens
    // its own (tcp_ep.c:478). A rank that is through may die while others are inside.
    std::vector<int32_t> words(static_cast<size_t>(size));
    (void)comm->all_to_all(words.data(), words.data(), 1, DataType::kInt32);
    if (std::find(left.begin(), left.end(), rank) == left.end()) {
      if (when == When::kBefore) raise(SIGKILL);
      die_in(3000 + 100 * rank);
    }
    const Status failed = reduce_until_failure(*comm);
    expect(failed.code() == Code::kPeerDied, failed.to_string());
    const int64_t began = base::now_ns();
    Communicator shrunk = shrink_to(*comm, left);
    const auto took_us = (base::now_ns() - began) / 1000;
    expect(took_us < 8'000'000, "shrink took " + std::to_string(took_us) + " us");
    if (std::getenv("RONDO_TEST_TIMES") != nullptr && shrunk.rank() == 0) {
      std::printf("%d of %d ranks go on after %lld us\n", shrunk.size(), size,
                  static_cast<long long>(took_us));
    }
    use(shrunk);
    expect_eq(comm->barrier().to_string(), failed.to_string(), "the old communicator");
  });
  require_left_ok(results, left);
}

// A training loop, as a program writes it: gradients of this rank's samples are summed over all ranks.
constexpr int kTrainers = 4, kSteps = 300, kDeathFrom = 20;
constexpr size_t kParameters = 500, kSamples = 24;

struct Model {
  int steps = 0;
  std::vector<float> parameters = std::vector<float>(kParameters);

  void step(const std::vector<float>& gradient) {
    for (size_t i = 0; i < kParameters; ++i) parameters[i] -= 0.01f * gradient[i];
    ++steps;
  }
};

std::vector<float> gradient_of(const Model& model, int rank, int size) {
  std::vector<float> gradient(kParameters);
  for (auto sample = static_cast<size_t>(rank); sample < kSamples;
       sample += static_cast<size_t>(size)) {
    for (size_t i = 0; i < kParameters; ++i) {
      gradient[i] += model.parameters[i] - std::sin(static_cast<float>(sample * i + sample));
    }
  }
  return gradient;
}

/// The same by one thread that plays `size` ranks, until so many steps are done.
void play(Model& model, int size, int steps) {
  while (model.steps < steps) {
    std::vector<float> sum = gradient_of(model, 0, size);
    for (int rank = 1; rank < size; ++rank) {
      const std::vector<float> gradient = gradient_of(model, rank, size);
      for (size_t i = 0; i < kParameters; ++i) sum[i] += gradient[i];
    }
    model.step(sum);
  }
}

/// Survives one death; with `dies_after_us` not below 0, this rank's.
void train(Communicator& comm, int64_t dies_after_us) {
  Model model, before;  // the model one step ago
  int lost_at = -1;
  while (model.steps < kSteps) {
    if (dies_after_us >= 0 && model.steps == kDeathFrom) die_in(dies_after_us);
    std::vector<float> gradient = gradient_of(model, comm.rank(), comm.size());
    const Status status =
        comm.all_reduce(gradient.data(), gradient.data(), kParameters, DataType::kFloat32);
    if (status.ok()) {
      before = model;
      model.step(gradient);
      continue;
    }
    auto left = comm.shrink(kPatience);
    expect(left.ok(), left.status().to_string());
    expect_eq(left->size(), kTrainers - 1, "size");
    comm = std::move(*left);
    // A rank whose all-reduce had ended well is one step ahead of one whose all-reduce failed.
    int32_t least = model.steps;
    expect_ok(comm.all_reduce(&least, &least, 1, DataType::kInt32, ReduceOp::kMin), "least");
    if (model.steps > least) model = before;
    expect_eq(model.steps, least, "steps");
    lost_at = least;
  }
  expect(lost_at >= 0, "no rank was lost");
  Model played;
  play(played, kTrainers, lost_at);
  play(played, kTrainers - 1, kSteps);
  expect(played.parameters == model.parameters, "not the same parameters");
}

int threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

int descriptors_of_this_process() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

/// Of each kind; RONDO_TEST_MOMENTS for more.
int moments() {
  const char* const text = std::getenv("RONDO_TEST_MOMENTS");
  return text != nullptr ? std::atoi(text) : spans_hosts() ? 5 : 12;
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
  for (int i = 0; i < moments(); ++i) {
    const int size = 3 + static_cast<int>(random() % 3);
    const int victim = i % 2 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(size));
    const auto after_us = static_cast<int64_t>(random() % (spans_hosts() ? 200'000 : 60'000));
    INFO(size << " ranks, rank " << victim << " dies after " << after_us << " us of shrinks");
    const std::vector<int> left = all_but({victim}, size);
    const TempDirectory directory;
    const auto results = run_ranks(How::kForks, size, [&](int rank) {
      auto made = Communicator::create(world_config(directory.path(), rank, size));
      expect(made.ok(), made.status().to_string());
      Communicator comm = std::move(*made);
      if (rank == victim) die_in(after_us);
      while (comm.size() == size) {
        comm.abort("again");
        auto shrunk = comm.shrink(kPatience);
        expect(shrunk.ok(), "shrink: " + shrunk.status().to_string());
        expect_eq(text_of(shrunk->former_ranks()),
                  text_of(shrunk->size() == size ? all_but({}, size) : left), "former ranks");
        comm = std::move(*shrunk);  // while others may still shrink the old one
      }
      expect_eq(left[static_cast<size_t>(comm.rank())], rank, "rank");
      use(comm);
    });
    require_left_ok(results, left);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE(
    "a rank that comes late to the last exchange of a shrink goes nowhere without the others") {
  constexpr int kRanks = 4;
  constexpr milliseconds kShort{2000};
  const TempDirectory directory;
  ForkGang gang(kRanks, [&](int rank, Link& link) {
    auto comm = Communicator::create(world_config(directory.path(), rank, kRanks));
    expect(comm.ok(), comm.status().to_string());
    const bool is_late = rank == kRanks - 1;
    if (is_late) {
      set_log_level(LogLevel::kInfo);
      set_log_callback([&, waits = true](LogLevel, std::string_view line) mutable {
        // The last word before that exchange.
        if (line.find(", shrunk: rank") == std::string_view::npos) return;
        if (std::exchange(waits, false)) link.await("the others have gone on");
      });
    }
    comm->abort("again");
    auto made = comm->shrink(kShort);
    if (!is_late) {
      expect(made.ok(), made.status().to_string());
      expect_eq(text_of(made->former_ranks()), std::string("0 1 2 "), "former ranks");
      link.announce("goes on");
      link.await("the end");
      use(*made);
      return;
    }
    for (int turn = 0; turn < 2; ++turn) {
      expect(made.status().code() == Code::kTimeout, made.status().to_string());
      made = comm->shrink(kShort);
    }
  });
  for (int rank = 0; rank < kRanks - 1; ++rank) gang.await(rank, "goes on");
  gang.tell(kRanks - 1, "the others have gone on");
  gang.await_end(kRanks - 1);
  for (int rank = 0; rank < kRanks - 1; ++rank) gang.tell(rank, "the end");
  require_all_ok(gang.join());
}

TEST_CASE("a training loop that loses a rank gives the bits of one that goes on with fewer") {
  for (const int victim : {0, 2}) {
    const std::vector<int64_t> moments_us{0, 1500, 500, 3000, 6000};
    for (const int64_t after_us : std::span(moments_us).first(spans_hosts() ? 2 : 5)) {
      INFO("rank " << victim << " dies after " << after_us << " us");
      const TempDirectory directory;
      const auto results = run_ranks(How::kForks, kTrainers, [&](int rank) {
        Config config = world_config(directory.path(), rank, kTrainers);
        config.reproducible = true;
        auto comm = Communicator::create(config);
        expect(comm.ok(), comm.status().to_string());
        train(*comm, rank == victim ? after_us : -1);
      });
      require_left_ok(results, all_but({victim}, kTrainers));
    }
  }
}

// The recipe of docs/shrink.md.
TEST_CASE("a new process takes the place of a rank that died, by a new communicator") {
  constexpr int kRanks = 4;
  for (const int victim : {2, 0}) {
    INFO("rank " << victim << " dies");
    const TempDirectory directory;
    // The last process is not there before the others have shrunk.
    ForkGang gang(kRanks + 1, [&](int process, Link& link) {
      std::vector<float> state(kParameters);
      Config config;
      if (process < kRanks) {
        auto comm = Communicator::create(world_config(directory.path(), process, kRanks));
        expect(comm.ok(), comm.status().to_string());
        expect_ok(comm->barrier(), "barrier");
        if (process == victim) raise(SIGKILL);
        const Status failed = reduce_until_failure(*comm);
        expect(failed.code() == Code::kPeerDied, failed.to_string());
        Communicator left = shrink_to(*comm, all_but({victim}, kRanks));
        for (size_t i = 0; i < kParameters; ++i) state[i] = static_cast<float>(i);
        config = world_config(directory.path(), left.rank(), kRanks);
        link.announce("shrunk");
      } else {
        link.await("join");
        config = world_config(directory.path(), kRanks - 1, kRanks);
      }
      config.name = "joined";
      auto joined = Communicator::create(config);
      expect(joined.ok(), joined.status().to_string());
      expect_ok(joined->broadcast(state.data(), state.data(), kParameters, DataType::kFloat32, 0),
                "broadcast");
      for (size_t i = 0; i < kParameters; ++i) {
        expect_eq(state[i], static_cast<float>(i), "the state");
      }
      use(*joined);
      link.announce("used");
    });
    for (const int rank : all_but({victim}, kRanks)) gang.await(rank, "shrunk");
    gang.tell(kRanks, "join");
    require_left_ok(gang.join(), all_but({victim}, kRanks + 1));
  }
}

TEST_CASE("after an abort with nobody dead a shrink keeps all ranks, and can be repeated") {
  for (const How how : kHows) {
    require_all_ok(run_world(how, 4, [](Communicator& comm) {
      comm.abort("enough");
      Communicator second = shrink_to(comm, {0, 1, 2, 3});
      use(second);
      // One that has not failed shrinks, too, and goes on.
      Communicator third = shrink_to(second, {0, 1, 2, 3});
      use(second);
      use(third);
      // And again from the first.
      Communicator fourth = shrink_to(comm, {0, 1, 2, 3});
      use(fourth);
      auto part = fourth.split(fourth.rank() % 2, 0);
      expect(part.ok(), part.status().to_string());
      expect_eq((*part)->former_ranks().size(), size_t{0}, "former ranks of a split");
      (*part)->abort("part");
      auto rest = (*part)->shrink(kPatience);
      expect(rest.ok(), rest.status().to_string());
      expect_eq(rest->size(), 2, "ranks of the part");
      use(*rest);
    }));
  }
}

TEST_CASE("a world of one shrinks to one, without a place to meet") {
  require_all_ok(run_ranks(How::kThreads, 1, [](int) {
    Config config;
    config.rank = 0;
    config.world_size = 1;
    auto comm = Communicator::create(config);
    expect(comm.ok(), comm.status().to_string());
    Communicator second = shrink_to(*comm, {0});
    Communicator third = shrink_to(second, {0});
    use(third);
    third.abort("enough");
    Communicator fourth = shrink_to(third, {0});
    use(fourth);
    auto part = fourth.split(0, 0);
    expect(part.ok(), part.status().to_string());
    Communicator rest = shrink_to(**part, {0});
    use(rest);
  }));
}

TEST_CASE("a part of one rank, and what is left of a world, shrink again") {
  require_all_ok(run_world(How::kThreads, 2, [](Communicator& comm) {
    auto part = comm.split(comm.rank(), 0);
    expect(part.ok(), part.status().to_string());
    Communicator same = shrink_to(**part, {0});
    use(same);
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() == 0) return;
    Communicator alone = shrink_to(comm, {1});
    Communicator again = shrink_to(alone, {0});
    use(again);
  }));
}

TEST_CASE("a rank that has destroyed its communicator, or leaves it alone, is left out") {
  for (const How how : kHows) {
    const TempDirectory directory;
    require_all_ok(run_ranks(how, 3, [&](int rank) {
      auto comm = Communicator::create(world_config(directory.path(), rank, 3));
      expect(comm.ok(), comm.status().to_string());
      expect_ok(comm->barrier(), "barrier");
      if (rank == 1) return;
      Communicator shrunk = shrink_to(*comm, {0, 2});
      use(shrunk);
    }));
  }
}

TEST_CASE("a stopped rank is left out after patience, and gets an error when it continues") {
  for (const int stopped : {0, 1, 2}) {
    INFO("rank " << stopped << " of 3 is stopped");
    const TempDirectory directory;
    ForkGang gang(3, [&](int rank, Link& link) {
      auto comm = Communicator::create(world_config(directory.path(), rank, 3));
      expect(comm.ok(), comm.status().to_string());
      expect_ok(comm->barrier(), "barrier");
      link.announce("ready");
      link.await("go");
      if (rank != stopped) comm->abort("a rank is stopped");
      const int64_t began = base::now_ns();
      auto made = comm->shrink(milliseconds(400));
      const double took = static_cast<double>(base::now_ns() - began) * 1e-9;
      if (rank == stopped) {
        expect(made.status().code() == Code::kTimeout, made.status().to_string());
        expect_says(made.status().message(), "gone on without it");
        expect(took < 20, "took " + std::to_string(took) + " s");
      } else {
        expect(made.ok(), made.status().to_string());
        expect_eq(text_of(made->former_ranks()), text_of(all_but({stopped}, 3)), "former ranks");
        expect(took < 20, "took " + std::to_string(took) + " s");
        use(*made);
      }
      link.announce("done");
      link.await("end");
    });
    for (int rank = 0; rank < 3; ++rank) gang.await(rank, "ready");
    gang.kill(stopped, SIGSTOP);
    const int64_t told = base::now_ns();
    for (const int rank : all_but({stopped}, 3)) gang.tell(rank, "go");
    for (const int rank : all_but({stopped}, 3)) gang.await(rank, "done");
    CHECK(base::now_ns() - told >= 400'000'000);
    gang.kill(stopped, SIGCONT);
    gang.tell(stopped, "go");
    gang.await(stopped, "done");
    for (int rank = 0; rank < 3; ++rank) gang.tell(rank, "end");
    require_all_ok(gang.join());
  }
}

TEST_CASE("two parts of the ranks never go on side by side") {
  // Ranks 1 and 3 wait for 0 and 2, which come when they have given up: neither pair has a majority
  // of the four, and only that with rank 0 may go on.
  for (const int late : {0, 1}) {
    const TempDirectory directory;
    ForkGang gang(4, [&](int rank, Link& link) {
      auto comm = Communicator::create(world_config(directory.path(), rank, 4));
      expect(comm.ok(), comm.status().to_string());
      expect_ok(comm->barrier(), "barrier");
      link.announce("ready");
      link.await("go");
      auto made = comm->shrink(milliseconds(300));
      if (rank % 2 == 0 && late == 1) {
        expect(made.ok(), made.status().to_string());
        expect_eq(text_of(made->former_ranks()), std::string("0 2 "), "former ranks");
        use(*made);
      } else {
        expect(made.status().code() == Code::kTimeout, made.status().to_string());
        expect_says(made.status().message(), late == 1 ? "gone on without it" : "did not come");
      }
      link.announce("done");
      link.await("end");
    });
    for (int rank = 0; rank < 4; ++rank) gang.await(rank, "ready");
    const std::vector<int> punctual{late == 0 ? 1 : 0, late == 0 ? 3 : 2};
    for (const int rank : punctual) gang.tell(rank, "go");
    for (const int rank : punctual) gang.await(rank, "done");
    if (late == 1) {
      for (const int rank : {1, 3}) gang.tell(rank, "go");
      for (const int rank : {1, 3}) gang.await(rank, "done");
    }
    if (late == 0) {
      gang.kill(0, SIGKILL);
      gang.kill(2, SIGKILL);
      for (const int rank : punctual) gang.tell(rank, "end");
      require_left_ok(gang.join(), punctual);
      continue;
    }
    for (int rank = 0; rank < 4; ++rank) gang.tell(rank, "end");
    require_all_ok(gang.join());
  }
}

TEST_CASE("thirty shrinks leave no descriptor and no thread behind") {
  for (const How how : kHows) {
    require_all_ok(run_world(how, 3, [&](Communicator& first) {
      // UCX's TCP connections between two ranks are one or two.
      const int may_vary = spans_hosts() ? 3 : 0;
      std::vector<Communicator> comms;
      comms.push_back(std::move(first));
      int descriptors = 0, threads = 0;
      for (int i = 0; i < 30; ++i) {
        Communicator next = shrink_to(comms.back(), {0, 1, 2});
        int32_t sum = 1;
        expect_ok(next.all_reduce(&sum, &sum, 1, DataType::kInt32), "all_reduce");
        expect_eq(sum, 3, "sum");
        comms.clear();
        comms.push_back(std::move(next));
        if (how == How::kThreads) continue;  // others make and close theirs meanwhile
        if (i == 2) {
          descriptors = descriptors_of_this_process();
          threads = threads_of_this_process();
        }
        if (i < 3) continue;
        expect(descriptors_of_this_process() <= descriptors + may_vary, "descriptors");
        expect(threads_of_this_process() <= threads, "threads");
      }
      use(comms.back());
    }));
  }
}

TEST_CASE("a shrink in a group, and a patience that is none, are refused") {
  require_all_ok(run_world(How::kThreads, 2, [](Communicator& comm) {
    const Status negative = comm.shrink(milliseconds(-1)).status();
    expect(negative.code() == Code::kInvalidArgument, negative.to_string());
    expect_ok(comm.group_start(), "group_start");
    const Status refused = comm.shrink().status();
    expect(refused.code() == Code::kInvalidArgument, refused.to_string());
    expect_ok(comm.group_end(), "group_end");
    use(comm);
  }));
}

}  // namespace rondo::testing
