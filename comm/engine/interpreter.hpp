// The interpreter: walks one channel of a program over an engine that supplies the primitives. One
// function template for host and device, so that what a GPU walks is tested on machines without
// one. It is resumable: it never waits, and a cursor remembers where it stopped.
#pragma once

#include <cstdint>

#include "comm/schedule/program.hpp"
#include "kernels/device_code.hpp"

namespace rondo::engine {

enum class Progress : uint8_t {
  kProgressed,  // something moved, and there is more to do
  kBlocked,     // nothing moved: a peer has to act first
  kDone,
  kFailed,  // the engine knows why
};

/// Where a channel stands.
struct Cursor {
  uint64_t round = 0;
  uint32_t step = 0;
  uint32_t slice = 0;
};

/// A program without its containers, as the device sees it too.
struct ProgramView {
  const schedule::Instruction* instructions;
  const schedule::Location* operands;
  uint32_t instruction_count, operand_count;
};

/// One slice of one move: which operands, where in the chunk, how much.
struct SliceMove {
  const schedule::Instruction* instruction;
  const schedule::Location* operands;  // sources, then destinations
  uint64_t offset;                     // elements, inside the chunk
  uint64_t length;                     // elements, > 0
};

/// Walks until blocked, done, failed, or `budget` moves have been made. The Engine has:
///   Progress try_move(const SliceMove&)                     kDone when made, kBlocked, kFailed
///   Progress try_wait(const schedule::Instruction&)         likewise
///   void signal()
template <class Engine>
RONDO_DEVICE Progress advance(const ProgramView& program, const schedule::Geometry& geometry,
                              Cursor& cursor, Engine& engine, uint32_t budget) {
  bool moved = false;
  while (cursor.round < geometry.rounds) {
    const schedule::Instruction& instruction = program.instructions[cursor.step];
    switch (instruction.action) {
      case schedule::Action::kMove:
        for (; cursor.slice < geometry.slices; ++cursor.slice) {
          const uint64_t length =
              geometry.slice_length(instruction.length, cursor.round, cursor.slice);
          if (length == 0) continue;  // nobody sends or awaits it: lengths are the same for all
          if (budget == 0) return Progress::kProgressed;
          const Progress made =
              engine.try_move(SliceMove{&instruction, program.operands + instruction.first,
                                        geometry.slice_begin(cursor.round, cursor.slice), length});
          if (made == Progress::kBlocked) return moved ? Progress::kProgressed : Progress::kBlocked;
          if (made == Progress::kFailed) return Progress::kFailed;
          moved = true;
          --budget;
        }
        cursor.slice = 0;
        break;
      case schedule::Action::kSignal:
        engine.signal();
        moved = true;
        break;
      case schedule::Action::kWait: {
        const Progress seen = engine.try_wait(instruction);
        if (seen == Progress::kBlocked) return moved ? Progress::kProgressed : Progress::kBlocked;
        if (seen == Progress::kFailed) return Progress::kFailed;
        moved = true;
        break;
      }
    }
    if (++cursor.step == program.instruction_count) {
      cursor.step = 0;
      ++cursor.round;
    }
  }
  return Progress::kDone;
}

}  // namespace rondo::engine
