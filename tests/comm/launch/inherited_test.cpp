// Programs that a rank starts: one that has inherited the rank's variables by mistake learns why it
// waits, and those that all ranks start, or that a shell starts as the rank, meet as ever.
#include <string>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using testing::ProgramResult;

const std::string kProgram = RONDO_CHILD_OF_RANK;

/// Two ranks of `words`, which wait for each other for `timeout_s`.
ProgramResult run(const std::string& timeout_s, const std::vector<std::string>& words) {
  std::vector<std::string> argv{RONDO_RUN, "-n", "2", "--"};
  argv.insert(argv.end(), words.begin(), words.end());
  return testing::run_program(
      argv, {"RANK", "WORLD_SIZE", "RONDO_RENDEZVOUS", "RONDO_BOOTSTRAP_TIMEOUT=" + timeout_s});
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a program that a rank starts with its variables fails at half of the deadline",
          "[launch]") {
  for (const std::string rank : {"0", "1"}) {
    const ProgramResult r = run("12", {kProgram, "live", rank, kProgram});
    INFO(r.err);
    CHECK(r.exit_code == 5);
    CHECK(contains(r.err, "the others have not come within 6 s"));
    CHECK(contains(r.err, "is rank " + rank + " of this job and has a communicator"));
    CHECK(contains(r.err,
                   "with rondo-run -n 1 -- PROGRAM, or without the rank's variables: env -u "
                   "RANK -u WORLD_SIZE PROGRAM"));
  }
}

TEST_CASE("where that rank has no communicator any more, the error at the deadline says it",
          "[launch]") {
  const ProgramResult r = run("1", {kProgram, "gone", "1", kProgram});
  INFO(r.err);
  CHECK(r.exit_code == 5);
  CHECK(contains(r.err, "rank 0 of 2 did not come within 1 s"));
  CHECK(contains(r.err,
                 "is or was rank 1 itself, start a program that is not part of this job with "));
}

TEST_CASE("programs that all ranks start meet, and so does a program behind a shell", "[launch]") {
  for (const std::string how : {"live", "gone"}) {
    const ProgramResult all = run("30", {kProgram, how, "all", kProgram});
    INFO(how << all.err);
    CHECK(all.exit_code == 0);
  }
  const ProgramResult shell = run("30", {"sh", "-c", kProgram + "; exit $?"});
  INFO(shell.err);
  CHECK(shell.exit_code == 0);
  const ProgramResult remedy =
      run("30", {kProgram, "live", "0", std::string(RONDO_RUN) + " -n 1 -- " + kProgram});
  INFO(remedy.err);
  CHECK(remedy.exit_code == 0);
}

}  // namespace
}  // namespace rondo
