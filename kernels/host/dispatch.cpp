// Chooses the instruction set of all callers: the best one, or RONDO_KERNELS. Decided once, at the
// first query.
#include <cstdlib>
#include <string>

#include "kernels/host/targets.hpp"

namespace rondo::kernels {
namespace {

struct Choice {
  const char* instruction_set;
  std::string rejected;  // the rejected value of RONDO_KERNELS
};

const Choice& choice() {
  static const Choice kChoice = [] {
    const char* best = instruction_sets().front();
    const char* wanted = std::getenv("RONDO_KERNELS");
    if (wanted == nullptr || *wanted == '\0') return Choice{best, {}};
    const char* found = find_instruction_set(wanted);
    return found != nullptr ? Choice{found, {}} : Choice{best, wanted};
  }();
  return kChoice;
}

}  // namespace

MoveFunction move_function(DataType type, ReduceOp op) {
  return move_function_for(choice().instruction_set, type, op);
}

Conversion conversion(DataType type) { return conversion_for(choice().instruction_set, type); }

const char* instruction_set() { return choice().instruction_set; }

const char* rejected_instruction_set() {
  return choice().rejected.empty() ? nullptr : choice().rejected.c_str();
}

}  // namespace rondo::kernels
