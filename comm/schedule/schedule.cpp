// What a step is called.
#include "comm/schedule/schedule.hpp"

namespace rondo::schedule {
namespace {

bool touches(const std::vector<Operand>& operands, OperandKind a, OperandKind b) {
  for (const Operand& o : operands) {
    if (o.place == a || o.place == b) return true;
  }
  return false;
}

}  // namespace

const char* name_of(const Step& step) {
  if (step.action == Action::kSignal) return "signal";
  if (step.action == Action::kWait) {
    return step.flag == Flag::kPosted ? "wait_posted" : "wait_signalled";
  }
  const bool receives = touches(step.sources, OperandKind::kSlot, OperandKind::kPublished);
  const bool sends = touches(step.destinations, OperandKind::kSlot, OperandKind::kSlot);
  const bool publishes =
      touches(step.destinations, OperandKind::kPublished, OperandKind::kPublished);
  const bool pushes = touches(step.destinations, OperandKind::kPeerOut, OperandKind::kPeerIn);
  const bool keeps = touches(step.destinations, OperandKind::kOut, OperandKind::kIn);
  if (step.sources.size() > 1) {
    if (pushes) return "reduce_push";
    if (publishes) return receives ? "recv_reduce_publish" : "reduce_publish";
    if (!receives) return sends ? "reduce_send" : "reduce";
    if (!sends) return "recv_reduce_copy";
    return keeps ? "recv_reduce_copy_send" : "recv_reduce_send";
  }
  if (touches(step.sources, OperandKind::kIdentity, OperandKind::kIdentity)) return "fill";
  if (pushes) return "push";
  if (touches(step.sources, OperandKind::kPeerIn, OperandKind::kPeerOut)) return "pull";
  if (publishes) return receives ? "recv_publish" : "publish";
  if (receives) return !sends ? "recv" : keeps ? "recv_copy_send" : "recv_send";
  return !sends ? "copy" : keeps ? "copy_send" : "send";
}

}  // namespace rondo::schedule
