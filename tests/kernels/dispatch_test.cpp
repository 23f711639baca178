// Which kernel a caller gets: the choice by CPU and by RONDO_KERNELS, and values outside the
// enumerations.
#include <cstdlib>
#include <string>

#include "kernels/host/targets.hpp"
#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels {
namespace {

TEST_CASE("The best instruction set is used unless RONDO_KERNELS names another", "[dispatch]") {
  const char* wanted = std::getenv("RONDO_KERNELS");
  const char* found = wanted != nullptr ? find_instruction_set(wanted) : nullptr;
  REQUIRE(std::string(instruction_set()) == (found != nullptr ? found : instruction_sets()[0]));
  if (wanted != nullptr && found == nullptr) {
    REQUIRE(rejected_instruction_set() != nullptr);
    CHECK(std::string(rejected_instruction_set()) == wanted);
  } else {
    CHECK(rejected_instruction_set() == nullptr);
  }
  test::for_each_type_and_op([](DataType type, ReduceOp op) {
    CHECK((move_function(type, op) != nullptr) == supports(type, op));
    CHECK((scalar_move_function(type, op) != nullptr) == supports(type, op));
    CHECK(move_function(type, op) == move_function_for(instruction_set(), type, op));
  });
}

TEST_CASE("Instruction sets are found by name in any case", "[dispatch]") {
  REQUIRE_FALSE(instruction_sets().empty());
  CHECK(std::string(instruction_sets().back()) == find_instruction_set("scalar"));
  for (const char* name : instruction_sets()) CHECK(find_instruction_set(name) == name);
  CHECK(find_instruction_set("") == nullptr);
  CHECK(find_instruction_set("mmx") == nullptr);
  CHECK(move_function_for("mmx", DataType::kFloat32, ReduceOp::kSum) == nullptr);
  CHECK(move_function_for("scalar", DataType::kFloat32, ReduceOp::kSum) ==
        scalar_move_function(DataType::kFloat32, ReduceOp::kSum));
}

TEST_CASE("Values outside the enumerations have no kernel", "[dispatch]") {
  for (const char* name : instruction_sets()) {
    for (const int bad : {kDataTypes, 128, 255}) {
      CHECK(move_function_for(name, static_cast<DataType>(bad), ReduceOp::kSum) == nullptr);
    }
    for (const int bad : {kReduceOps, 128, 255}) {
      CHECK(move_function_for(name, DataType::kFloat32, static_cast<ReduceOp>(bad)) == nullptr);
    }
  }
  CHECK(move_function(static_cast<DataType>(kDataTypes), ReduceOp::kSum) == nullptr);
  CHECK(scalar_move_function(DataType::kUint8, static_cast<ReduceOp>(kReduceOps)) == nullptr);
}

TEST_CASE("Floats have no bits to combine, bools no average; everything else has everything") {
  for (int type = 0; type < kDataTypes; ++type) {
    const auto t = static_cast<DataType>(type);
    for (const auto op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
      CHECK(supports(t, op) == !is_floating(t));
    }
    CHECK(supports(t, ReduceOp::kAvg) == (t != DataType::kBool));
    for (const auto op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      CHECK(supports(t, op));
    }
  }
  CHECK_FALSE(supports(static_cast<DataType>(kDataTypes), ReduceOp::kSum));
  CHECK_FALSE(supports(DataType::kInt32, static_cast<ReduceOp>(kReduceOps)));
}

}  // namespace
}  // namespace rondo::kernels
