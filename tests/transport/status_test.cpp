// Status and Result: how a failure leaves a function that asks for a value.
#include "rondo/status.hpp"

#include <memory>

#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

Result<std::unique_ptr<int>> box(int value) {
  if (value < 0) return Status(Code::kDataError, "negative");
  return std::make_unique<int>(value);
}

Result<int> sum(int a, int b, int& reached) {
  const std::unique_ptr<int> first = RONDO_TRY(box(a));
  reached = 1;
  return *first + *RONDO_TRY(box(b));
}

Status both(const Status& first, Status second, int& reached) {
  RONDO_TRY(first);
  reached = 1;
  RONDO_TRY(std::move(second));
  reached = 2;
  return {};
}

}  // namespace

TEST_CASE("RONDO_TRY returns a status that is a failure") {
  const Status bad(Code::kTimeout, "late");
  int reached = 0;
  CHECK(both({}, {}, reached).ok());
  CHECK(reached == 2);
  reached = 0;
  CHECK(both(bad, {}, reached).message() == "late");
  CHECK(reached == 0);
  CHECK(both({}, bad, reached).code() == Code::kTimeout);
  CHECK(reached == 1);
}

TEST_CASE("RONDO_TRY is a result's value, moved, or returns its status") {
  int reached = 0;
  const Result<int> good = sum(3, 4, reached);
  REQUIRE(good.ok());
  CHECK(good.value() == 7);
  for (const bool first : {true, false}) {
    reached = 0;
    const Result<int> bad = first ? sum(-1, 4, reached) : sum(3, -1, reached);
    CHECK_FALSE(bad.ok());
    CHECK(bad.status().code() == Code::kDataError);
    CHECK(bad.status().message() == "negative");
    CHECK(reached == (first ? 0 : 1));
  }
}

}  // namespace rondo
