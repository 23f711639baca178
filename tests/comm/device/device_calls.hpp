// Operations for tests of the device engine: the programs of all ranks with buffers and data, and
// what is to come out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/device/device_operation.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/expectation.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::engine::test {

using schedule::test::Expectation;

inline constexpr uint32_t kDivisor = 3;
inline constexpr uint64_t kUntouched = 0xbadbadbadbadbad;

// One operation of all ranks with its buffers.
struct Call {
  schedule::LoweredOperation operation;
  bool direct;
  std::vector<std::vector<uint64_t>> memory = {};  // [rank] In and Out, overlapping where in place
  std::string name = {};
  uint64_t fingerprint = 1;

  Expectation expectation() const {
    return {operation, [](uint64_t sum) { return sum / kDivisor; }};
  }
  void lay_out() {
    const Expectation e = expectation();
    for (size_t r = 0; r < e.ranks(); ++r) {
      const size_t size = std::max(e.in_base(r) + e.in_size(r), e.out_base(r) + e.out_size(r));
      memory.emplace_back(size + 1, kUntouched);
      if (!e.reads(r)) continue;
      for (size_t i = 0; i < e.in_size(r); ++i) {
        memory[r][e.in_base(r) + i] = schedule::test::contribution(r, i);
      }
    }
  }
  uint64_t* in(size_t rank) { return memory[rank].data() + expectation().in_base(rank); }
  uint64_t* out(size_t rank) { return memory[rank].data() + expectation().out_base(rank); }
};

inline bool is_direct(Algorithm algorithm) {
  return algorithms::traits_of(algorithm).needs.references;
}

// Slots of 16 elements, so that little data reaches many rounds.
inline constexpr schedule::Limits kLimits = {.element_bytes = 8,
                                             .slot_bytes = 128,
                                             .depth = 4,
                                             .channels = 2,
                                             .align = 4,
                                             .min_slice_bytes = 0};

inline transport::cuda_ipc::SegmentSizes shape_of(uint32_t ranks,
                                                  const schedule::Limits& limits = kLimits) {
  return {.ranks = ranks,
          .channels = static_cast<uint32_t>(limits.channels),
          .depth = limits.depth,
          .slot_bytes = limits.slot_bytes,
          .publish_depth = limits.depth,
          .publish_slot_bytes = limits.slot_bytes};
}

inline Call call_of(const schedule::test::OperationShape& shape,
                    const schedule::Limits& limits = kLimits) {
  Call call = {.operation = schedule::test::operation(shape, limits),
               .direct = is_direct(shape.algorithm),
               .name = schedule::test::describe(shape, limits)};
  call.lay_out();
  return call;
}

inline Call all_reduce(Algorithm algorithm, int ranks, uint64_t count = 500) {
  return call_of({.collective = Collective::kAllReduce,
                  .algorithm = algorithm,
                  .ranks = ranks,
                  .count = count});
}

/// Every collective by every algorithm.
inline std::vector<Call> everything(uint32_t ranks, const std::vector<uint64_t>& counts) {
  std::vector<Call> calls;
  for (const auto& [collective, algorithm] : schedule::test::builtins()) {
    for (const uint64_t count : counts) {
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithms::is_in_place_safe(collective, algorithm)) continue;
        calls.push_back(call_of({.collective = collective,
                                 .algorithm = algorithm,
                                 .ranks = static_cast<int>(ranks),
                                 .root = static_cast<int>(ranks) / 2,
                                 .in_place = in_place,
                                 .count = count}));
        calls.back().fingerprint = calls.size();
      }
    }
  }
  return calls;
}

/// Every result is right on every rank, and nothing has been written behind it.
inline void check_results(std::vector<Call>& calls) {
  for (Call& call : calls) {
    if (call.operation.collective == Collective::kBarrier) continue;
    for (size_t r = 0; r < call.memory.size(); ++r) {
      INFO(call.name << ", rank " << r);
      CHECK(call.expectation().right(r, call.out(r)));
      CHECK(call.memory[r].back() == kUntouched);
    }
  }
}

/// Rank 0 has waited in vain for rank 1 in its first operation: of its two channels one at least
/// says so, and what it has waited for; the other may have been told.
template <class AnyWorld>
void check_names_rank_1(const AnyWorld& world,
                        DeviceReport::Awaited awaited = DeviceReport::kSlot) {
  int named = 0;
  for (uint32_t c = 0; c < 2; ++c) {
    const DeviceReport& report = world.report(0, c);
    CHECK((report.ended == DeviceReport::kTimeout || report.ended == DeviceReport::kAborted));
    if (report.ended != DeviceReport::kTimeout) continue;
    ++named;
    CHECK(report.peer == 1);
    CHECK(report.awaited == awaited);
    CHECK(report.epoch == 1);
  }
  CHECK(named > 0);
}

/// Two ranks have called different things: of all channels one at least has seen it; the others may
/// have been told.
template <class AnyWorld>
void check_disagreement(const AnyWorld& world) {
  int mismatches = 0;
  for (uint32_t r = 0; r < 2; ++r) {
    for (uint32_t c = 0; c < 2; ++c) {
      const DeviceReport& report = world.report(r, c);
      CHECK((report.ended == DeviceReport::kMismatch || report.ended == DeviceReport::kAborted));
      if (report.ended != DeviceReport::kMismatch) continue;
      ++mismatches;
      CHECK(report.peer == static_cast<int>(1 - r));
    }
  }
  CHECK(mismatches > 0);
}

/// An operation of one rank: what every channel's block is given, on the host.
struct Launch {
  DeviceOperation operation;
  uint32_t channels;
  std::span<std::byte> memory;  // that holds its buffers
};

inline double factor_of(size_t rank) { return static_cast<double>(rank + 2); }

inline DeviceOperation device_operation(Call& call, size_t rank, uint64_t limit_ns, bool scaled) {
  const schedule::Program& program = call.operation.programs[rank];
  return {.program = {.instructions = program.instructions.data(),
                      .operands = program.operands.data(),
                      .instruction_count = static_cast<uint32_t>(program.instructions.size()),
                      .operand_count = static_cast<uint32_t>(program.operands.size())},
          .geometries = program.channels.data(),
          .in = reinterpret_cast<const std::byte*>(call.in(rank)),
          .out = reinterpret_cast<std::byte*>(call.out(rank)),
          .type = DataType::kUint64,
          .op = scaled ? ReduceOp::kMulSum : ReduceOp::kSum,
          .protocol = Protocol::kSimple,
          .direct = call.direct,
          .divisor = scaled ? 1 : kDivisor,
          .scaled = scaled,
          .factor = scaled ? factor_of(rank) : 1,
          .fingerprint = call.fingerprint,
          .limit_ns = limit_ns,
          .channels = static_cast<uint32_t>(program.channels.size())};
}

/// Of all ranks.
inline std::vector<Launch> launches_of(Call& call, uint64_t limit_ns, bool scaled = false) {
  std::vector<Launch> launches;
  for (size_t r = 0; r < call.operation.programs.size(); ++r) {
    launches.push_back({device_operation(call, r, limit_ns, scaled),
                        static_cast<uint32_t>(call.operation.programs[r].channels.size()),
                        std::as_writable_bytes(std::span(call.memory[r]))});
  }
  return launches;
}

inline std::vector<uint32_t> all_ranks(uint32_t ranks) {
  std::vector<uint32_t> all(ranks);
  for (uint32_t r = 0; r < ranks; ++r) all[r] = r;
  return all;
}

}  // namespace rondo::engine::test
