// ncclGroupEnd() in a heap that is exhausted: each of its allocations fails once, in turn.
#include <cstdlib>

#include "nccl/abi.h"
#include "tests/harness/catch.hpp"
#include "tests/harness/failing_allocation.hpp"

namespace rondo::testing {

TEST_CASE("A group of inits of which an allocation fails is an error, and its communicators end") {
  setenv("RONDO_NCCL_HOST", "1", 1);
  is_test = true;
  long failures = 0;
  for (bool has_failed = true; has_failed; ++failures) {
    INFO("allocation " << failures + 1);
    REQUIRE(failures < 100);
    ncclUniqueId id;
    ncclComm_t comms[2] = {};
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(ncclCommInitRank(&comms[rank], 2, id, rank) == ncclSuccess);
    }
    ncclResult_t ended = ncclSuccess;
    {
      const Failing failing(failures + 1);
      ended = ncclGroupEnd();
      has_failed = Failing::has_failed();
    }
    CHECK((ended == ncclSuccess) == !has_failed);
    for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
  }
  CHECK(failures > 2);
}

}  // namespace rondo::testing
