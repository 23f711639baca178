// Programs that a rank starts: one that has inherited the rank's variables by mistake learns why it
// waits, and those that all ranks start, or that a shell starts as the rank, meet as ever.
#include "tests/comm/bootstrap/rondo_run_helpers.hpp"

namespace rondo {
namespace {

const std::string kProgram = RONDO_CHILD_OF_RANK;

/// Two ranks of `words`, which wait for each other for `timeout_s`. An error names what was
/// left of it when a rank began to wait: some milliseconds less.
void check_two_ranks(const std::string& timeout_s, const Words& words, const Ended& wanted) {
  check_ended(run_program(Words{RONDO_RUN, "-n", "2", "--"} + words,
                          {"RANK", "WORLD_SIZE", "RONDO_RENDEZVOUS",
                           "RONDO_BOOTSTRAP_TIMEOUT=" + timeout_s}),
              wanted);
}

TEST_CASE("a program that a rank starts with its variables fails at half of the deadline",
          "[launch]") {
  for (const std::string rank : {"0", "1"}) {
    check_two_ranks(
        "13.8", {kProgram, "live", rank, kProgram},
        {.exit_code = 5,
         .says = {"the others have not come within 6.",
                  "is rank " + rank + " of this job and has a communicator",
                  "with rondo-run -n 1 -- PROGRAM, or without the rank's variables: env "
                  "-u RANK -u WORLD_SIZE PROGRAM"}});
  }
  // Where that rank has no communicator any more, the error comes at the deadline.
  check_two_ranks("1.9", {kProgram, "gone", "1", kProgram},
                  {.exit_code = 5,
                   .says = {"rank 0 of 2 did not come within 1.",
                            "is or was rank 1 itself, start a program that is not part of this job "
                            "with "}});
}

TEST_CASE("programs that all ranks start meet, and so does a program behind a shell", "[launch]") {
  for (const std::string how : {"live", "gone"}) {
    INFO(how);
    check_two_ranks("30", {kProgram, how, "all", kProgram}, {});
  }
  check_two_ranks("30", {"sh", "-c", kProgram + "; exit $?"}, {});
  check_two_ranks("30", {kProgram, "live", "0", RONDO_RUN " -n 1 -- " + kProgram}, {});
}

}  // namespace
}  // namespace rondo
