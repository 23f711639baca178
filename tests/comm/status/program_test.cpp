// rondo-status as its users run it, on a job that hangs.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

using nlohmann::json;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using During = std::function<void(pid_t)>;  // with what a job was started by

/// Runs a job to its end, which must be a good one.
ProgramResult run_job(const std::vector<std::string>& argv,
                      const std::vector<std::string>& environment, const During& during) {
  const ProgramResult ran = run_program(argv, environment, std::chrono::seconds(60), during);
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  return ran;
}

/// By rondo-run, as these of its arguments say.
ProgramResult run_by_launcher(const TempDirectory& place, std::vector<std::string> arguments,
                              const During& during) {
  arguments.insert(arguments.begin(), {RONDO_RUN, "-n"});
  return run_job(arguments, {"XDG_RUNTIME_DIR=" + place.path()}, during);
}

/// Three ranks of the job that hangs, by a shell.
void run_by_shell(const std::string& how, const During& during) {
  const TempDirectory place;
  const std::string script =
      "for r in 0 1 2; do RANK=$r WORLD_SIZE=3 '" RONDO_HANG "' " + how + " & done; wait";
  run_job({"sh", "-c", script},
          {"RONDO_RENDEZVOUS=" + place.path() + "/meet", "RONDO_STATUS_SOCKET"}, during);
}

ProgramResult status(const TempDirectory& place, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), RONDO_STATUS);
  return run_program(arguments, {"XDG_RUNTIME_DIR=" + place.path()}, std::chrono::seconds(20));
}

/// The communicator in which the job hangs; null where it is not shown.
json training(const json& document) {
  for (const json& communicator : document["communicators"]) {
    if (communicator["communicator"] == "training") return communicator;
  }
  return nullptr;
}

/// What rondo-status says of `pid` once `is_so` of it.
json await_status(const TempDirectory& place, int pid,
                  const std::function<bool(const json& document)>& is_so) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string last;
  while (std::chrono::steady_clock::now() < until) {
    const ProgramResult asked = status(place, {std::to_string(pid), "--json", "-"});
    last = asked.out + asked.err;
    if (asked.exit_code == 0) {
      json document = json::parse(asked.out);
      if (is_so(document)) return document;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw std::runtime_error("the job never hung as it should; the last answer: " + last);
}

/// Of so many communicators, once ranks 1 and 2 have waited for a while in a hanging job.
json hanging(const TempDirectory& place, int pid, size_t communicators = 1) {
  return await_status(place, pid, [&](const json& document) {
    const json communicator = training(document);
    if (document["communicators"].size() != communicators || communicator.is_null()) return false;
    const json& ranks = communicator["ranks"];
    return ranks[0]["process"] == "stopped by a signal" && ranks[1].contains("waits_for") &&
           ranks[2].contains("waits_for") && ranks[2]["seconds"] > 0.05;
  });
}

/// `ended`: operations before the one that hangs.
void check_hanging(const json& communicator, int ended = 1) {
  INFO(communicator.dump(1));
  CHECK(communicator["communicator"] == "training");
  const json& ranks = communicator["ranks"];
  REQUIRE(ranks.size() == 3);
  CHECK(ranks[0]["does"] == "outside");
  CHECK(ranks[0]["ended"] == ended);
  for (const int rank : {1, 2}) {
    CHECK(ranks[rank]["does"] == "waits");
    CHECK(ranks[rank]["waits_for"] == rank - 1);
    CHECK(ranks[rank]["begun"] == ended + 1);
    CHECK(ranks[rank]["ended"] == ended);
    CHECK(ranks[rank]["operation"] == "all_reduce(float, sum, count 3000)");
    CHECK(ranks[rank]["algorithm"] == "ring");
    CHECK(contains(ranks[rank]["action"], "recv"));
    CHECK(ranks[rank]["pid"] != ranks[0]["pid"]);
  }
  CHECK(
      communicator["chains"] ==
      json({"rank 2 waits for rank 1, which waits for rank 0, which is stopped by a signal (pid " +
            std::to_string(ranks[0]["pid"].get<int>()) + ")"}));
}

void go_on(const json& communicator) { kill(communicator["ranks"][0]["pid"].get<int>(), SIGCONT); }

}  // namespace

TEST_CASE("a hanging job is seen through its launcher, with its flight records, and goes on") {
  const TempDirectory place;
  std::string recorded;
  run_by_launcher(place, {"3", "--", RONDO_HANG}, [&](pid_t pid) {
    const json document = hanging(place, pid);
    CHECK(document["job"]["pid"] == pid);
    CHECK(document["job"]["ranks"] == 3);
    CHECK(contains(document["job"]["command"], "hang"));
    check_hanging(document["communicators"][0]);

    const ProgramResult text = status(place, {std::to_string(pid)});
    INFO(text.out << text.err);
    CHECK(text.exit_code == 0);
    CHECK(contains(text.out, "rank 2 waits for rank 1, which waits for rank 0, which is stopped"));
    CHECK(contains(text.out, "all_reduce(float, sum, count 3000) by ring"));
    CHECK(contains(text.out, "recv"));

    const ProgramResult jobs = status(place, {});
    CHECK(jobs.exit_code == 0);
    CHECK(contains(jobs.out, std::to_string(pid)));
    const json listed = json::parse(status(place, {"--json", "-"}).out);
    REQUIRE(listed["jobs"].size() >= 1);
    const std::string file = place.path() + "/jobs.json";
    const ProgramResult written = status(place, {"--json", file});
    CHECK((written.exit_code == 0 && written.out.empty()));
    CHECK(json::parse(std::ifstream(file)) == listed);
    const ProgramResult unwritten = status(place, {"--json", place.path()});
    CHECK((unwritten.exit_code == 1 && contains(unwritten.err, "cannot write --json")));

    const ProgramResult records = status(place, {std::to_string(pid), "--records"});
    CHECK(records.exit_code == 0);
    recorded = records.out + records.err;
    go_on(document["communicators"][0]);
  });
  CHECK(contains(recorded, "flight recorder of communicator \"training\""));
  for (const char* part :
       {"rank 0 (pid", "rank 1 (pid", "rank 2 (pid", "#1 all_reduce(float, sum, count 3000)"}) {
    CHECK(contains(recorded, part));
  }
  CHECK(contains(recorded, "#2 all_reduce(float, sum, count 3000)  <- in progress"));
}

TEST_CASE(
    "a message that hangs is seen with its peer, direction and bytes, in the flight records too") {
  const TempDirectory place;
  std::string recorded;
  run_by_launcher(place, {"2", "--", RONDO_HANG, "message"}, [&](pid_t pid) {
    const json seen = training(await_status(place, pid, [](const json& document) {
      const json found = training(document);
      return !found.is_null() && found["ranks"][0]["process"] == "stopped by a signal" &&
             !found["ranks"][1]["messages"].empty();
    }));
    INFO(seen.dump(1));
    const json& rank = seen["ranks"][1];
    CHECK(rank["does"] == "waits");
    CHECK(rank["operation"] == "recv(float, count 3000) from rank 0");
    json message = rank["messages"][0];
    CHECK(message["seconds"] >= 0);
    message.erase("seconds");
    CHECK(message == json({{"direction", "recv"},
                           {"peer", 0},
                           {"tag", 0},
                           {"type", "float"},
                           {"count", 3000},
                           {"bytes", 12000},
                           {"moved_bytes", 0},
                           {"behind", 0}}));
    CHECK(seen["ranks"][0]["messages"].empty());

    recorded = status(place, {std::to_string(pid), "--records"}).out;
    CHECK(contains(status(place, {std::to_string(pid)}).out,
                   "rank 1: recv(float, count 3000) from rank 0: 0 of 12000 bytes, for "));
    go_on(seen);
  });
  CHECK(contains(recorded, "  recv(float, count 3000) from rank 0: 0 of 12000 bytes, for "));
  CHECK(contains(recorded, "  <- pending"));
}

TEST_CASE("a job of another launcher is seen through any of its processes") {
  const TempDirectory place;
  run_by_shell("", [&](pid_t pid) {
    const json seen_from_parent = hanging(place, pid);
    CHECK(seen_from_parent["job"].is_null());
    const json& communicator = seen_from_parent["communicators"][0];
    check_hanging(communicator);
    // Only rank 0 has the board's descriptor.
    for (const json& rank : communicator["ranks"]) {
      check_hanging(hanging(place, rank["pid"])["communicators"][0]);
    }
    go_on(communicator);
  });
}

TEST_CASE("a rank's boards are all seen, those that it has open and those that it has mapped") {
  for (const auto& [how, shown] :
       {std::pair<std::string, std::string>{"parts", "training/color 0"}, {"rows", "rows"}}) {
    const TempDirectory place;
    run_by_shell(how, [&, shown = shown](pid_t pid) {
      const json all = hanging(place, pid, 2);
      const json ranks = training(all)["ranks"];
      CHECK(hanging(place, ranks[0]["pid"], 1)["communicators"].size() == 1);
      // Rank 1 has the part's board open, as its rank 0, and the other's mapped; rank 2 has both
      // mapped.
      for (const int rank : {1, 2}) {
        const json seen = hanging(place, ranks[rank]["pid"], 2);
        check_hanging(training(seen), 2);  // a split is one too
        for (const json& communicator : seen["communicators"]) {
          if (communicator["communicator"] == "training") continue;
          CHECK(communicator["communicator"] == shown + ", ranks 1 and 2 of training");
          REQUIRE(communicator["ranks"].size() == 2);
          CHECK(communicator["ranks"][0]["pid"] == ranks[1]["pid"]);
          CHECK(communicator["ranks"][1]["pid"] == ranks[2]["pid"]);
        }
      }
      go_on(training(all));
    });
  }
}

TEST_CASE("a launcher that is stopped itself does not hide its ranks") {
  const TempDirectory place;
  run_by_launcher(place, {"3", "--", RONDO_HANG}, [&](pid_t pid) {
    hanging(place, pid);
    kill(pid, SIGSTOP);
    const json document = hanging(place, pid);
    CHECK(document["job"].is_null());
    check_hanging(document["communicators"][0]);
    kill(pid, SIGCONT);
    go_on(document["communicators"][0]);
  });
}

TEST_CASE("what is no job is named, and mistakes end with 2") {
  const TempDirectory place;
  const auto none = status(place, {"1073741824"});
  CHECK(none.exit_code == 1);
  CHECK(contains(none.err, "there is no process 1073741824"));
  const auto alien = status(place, {std::to_string(getpid())});
  CHECK(alien.exit_code == 1);
  CHECK(contains(alien.err, "has a communicator of rondo"));
  for (const char* wrong : {"x", "-5", "0", "--yaml", "--records"}) {
    INFO(wrong);
    CHECK(status(place, {wrong}).exit_code == 2);
  }
}

TEST_CASE("what could not be printed is no success") {
  const TempDirectory place;
  for (const char* flag : {"", "--json -", "--help"}) {
    INFO(flag);
    const auto ran = run_program({"sh", "-c", RONDO_STATUS " " + std::string(flag) + " >/dev/full"},
                                 {"XDG_RUNTIME_DIR=" + place.path()}, std::chrono::seconds(20));
    CHECK(ran.exit_code == 1);
    CHECK(contains(ran.err, "rondo-status: cannot write to stdout: No space left on device"));
  }
}

TEST_CASE("without a communicator the flight records say so, and the job goes on") {
  const TempDirectory place;
  const std::string fifo = place.path() + "/go";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  std::string recorded;
  const std::string waits = "read x < '" + fifo + "'; echo read $x";
  const auto ran = run_by_launcher(place, {"1", "--", "sh", "-c", waits}, [&](pid_t pid) {
    std::string shown;
    for (int i = 0; i < 500 && !contains(shown, "job "); ++i) {
      shown = status(place, {std::to_string(pid)}).out;
    }
    CHECK(contains(shown, "no communicator yet"));
    recorded = status(place, {std::to_string(pid), "--records"}).out;
    std::ofstream(fifo) << "it\n";  // waits until it is read
  });
  CHECK(contains(ran.out, "[0] read it"));
  CHECK(contains(recorded, "there is no communicator"));
}

}  // namespace rondo::testing
