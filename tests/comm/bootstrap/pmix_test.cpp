#include "comm/bootstrap/identity/pmix.hpp"

#include <chrono>
#include <string>

#include "tests/comm/bootstrap/environment_variables.hpp"
#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a rank asks PMIx's server again for what rank 0 has not published yet", "[pmix]") {
  {
    const Environment environment("RONDO_TEST_PMIX_UNKNOWN=3");
    const auto place = comm::pmix_place();
    REQUIRE(place.ok());
    CHECK(place->rank == 1);
    CHECK(place->world_size == 2);
    const auto published = comm::pmix_published(30s);
    INFO(published.status().message());
    REQUIRE(published.ok());
    CHECK(*published == "a place");
  }
  const Environment environment("RONDO_TEST_PMIX_UNKNOWN=1000000");
  CHECK(!comm::pmix_published(100ms).ok());
}

}  // namespace
}  // namespace rondo
