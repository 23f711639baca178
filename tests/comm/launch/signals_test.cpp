// Which signals end a job, and which only repeat the one that already ends it.
#include "comm/launch/signals.hpp"

#include <csignal>

#include "tests/harness/catch.hpp"

namespace rondo::run {

using std::chrono::milliseconds;

TEST_CASE("a second SIGTERM within a second repeats the first; a second Ctrl-C never does") {
  // mpirun and schedulers signal the whole process group and then each process.
  for (const int signal : {SIGTERM, SIGHUP}) {
    CHECK(is_echo(signal, milliseconds(10)));
    CHECK_FALSE(is_echo(signal, milliseconds(1010)));
  }
  for (const int signal : {SIGINT, SIGQUIT}) CHECK_FALSE(is_echo(signal, milliseconds(10)));
  CHECK(is_echo(SIGXCPU, milliseconds(10'000)));  // the kernel repeats it every second
}

TEST_CASE("ranks get the signals that programs handle, and SIGTERM for the others") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) CHECK(end_signal(signal) == signal);
  for (const int signal : {SIGXCPU, SIGALRM, SIGPIPE}) CHECK(end_signal(signal) == SIGTERM);
}

}  // namespace rondo::run
