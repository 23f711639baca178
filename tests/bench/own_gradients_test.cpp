// own_gradients as docs/own_tensors.md starts it. What it measures is not judged.
#include <string>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

using rondo::testing::ProgramResult;
using rondo::testing::run_program;

TEST_CASE("own_gradients: a row for each size, gradients checked, and mistakes refused") {
  const ProgramResult ran =
      run_program({RONDO_RUN, "-n", "2", "--no-prefix", "--", RONDO_OWN_GRADIENTS, "1", "1"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK(ran.out.find("16 tensors, 2 ranks, medians of 1 rounds\n") != std::string::npos);
  for (const char* size : {"\n| 64 | ", "\n| 256 | ", "\n| 1024 | "}) {
    CHECK(ran.out.find(size) != std::string::npos);
  }
  CHECK(ran.out.find("\n| 4096 | ") == std::string::npos);
  const ProgramResult refused = run_program({RONDO_OWN_GRADIENTS, "many"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("[ROUNDS [MIB]]") != std::string::npos);
}
