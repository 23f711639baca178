// Changes to lowered programs, for tests that break them.
#pragma once

#include <algorithm>

#include "comm/schedule/verifier.hpp"

namespace rondo::schedule::test {

/// Gives a move of `rank` its chunk's length, and its operands their places in the buffers, as
/// lowering does.
inline void put_in_place(LoweredOperation& op, size_t rank, Instruction& move) {
  const internal::Form form = internal::form_of(op.collective);
  move.length = chunk_length(op, move.chunk);
  for (uint32_t n = 0; n < uint32_t{move.sources} + move.destinations; ++n) {
    Location& o = op.programs[rank].operands[move.first + n];
    const bool own = o.place == OperandKind::kIn || o.place == OperandKind::kOut;
    const bool in = o.place == OperandKind::kIn || o.place == OperandKind::kPeerIn;
    const bool out = o.place == OperandKind::kOut || o.place == OperandKind::kPeerOut;
    const auto block = static_cast<size_t>(o.chunk);
    o.offset = 0;
    if ((!in && !out) || (in ? form.in : form.out) == internal::Holds::kOne) continue;
    if (!is_varying(op.collective)) {
      o.offset = block * op.programs[0].channels[0].block;
      continue;
    }
    const size_t whose = own ? rank : static_cast<size_t>(std::max(o.peer, 0));
    const BlockLayout& layout = op.layouts[whose];
    o.offset = in ? layout.in_offsets[block] : layout.out_offsets[block];
  }
}

/// Of all moves of all ranks.
inline void put_in_place(LoweredOperation& op) {
  for (size_t rank = 0; rank < op.programs.size(); ++rank) {
    for (Instruction& i : op.programs[rank].instructions) {
      if (i.action == Action::kMove) put_in_place(op, rank, i);
    }
  }
}

}  // namespace rondo::schedule::test
