// Building and lowering as such: bounds, division of the data, refusals, names; and the teaching
// ring against the real one.
#include <array>
#include <limits>

#include "comm/algorithms/teaching_ring.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/carry_out.hpp"

namespace rondo::schedule::test {
namespace {

Program lowered(Collective collective, Algorithm algorithm, int ranks, uint64_t count,
                const Limits& limits) {
  Result<Schedule> s = algorithms::build(collective, algorithm, ranks, 0, 0);
  REQUIRE(s.ok());
  Result<Program> program = lower(*s, count, limits);
  if (!program.ok()) FAIL(program.status().to_string());
  return *program;
}

Limits floats() { return {.element_bytes = 4, .slot_bytes = 32768, .depth = 8}; }

std::vector<std::string> names(Collective collective, Algorithm algorithm, int ranks, int rank) {
  Result<Schedule> s = algorithms::build(collective, algorithm, ranks, rank, 0);
  std::vector<std::string> all;
  for (const Step& step : s->steps) all.emplace_back(name_of(step));
  return all;
}

/// The outputs of all ranks, whose schedules use links only.
std::vector<std::vector<double>> walk(const std::vector<Schedule>& schedules,
                                      const std::vector<std::vector<double>>& inputs) {
  using Values = std::vector<double>;
  const size_t ranks = schedules.size(), count = inputs[0].size();
  const size_t block = (count + ranks - 1) / ranks;
  std::vector<Values> outputs(ranks, Values(count));
  carry_out<Values>(schedules, [&](size_t rank, const Step& step, std::vector<Values>& received) {
    const size_t begin = std::min(count, static_cast<size_t>(step.chunk) * block);
    const auto at = static_cast<std::ptrdiff_t>(begin);
    const auto end = static_cast<std::ptrdiff_t>(std::min(count, begin + block));
    const Values own(inputs[rank].begin() + at, inputs[rank].begin() + end);
    Values sum;
    for (size_t s = 0, slot = 0; s < step.sources.size(); ++s) {
      const bool is_slot = step.sources[s].place == OperandKind::kSlot;
      const Values& part = is_slot ? received[slot++] : own;
      if (s == 0) sum = part;
      for (size_t i = 0; s > 0 && i < part.size(); ++i) sum[i] += part[i];
    }
    for (const Operand& o : step.destinations) {
      if (o.place == OperandKind::kOut)
        std::copy(sum.begin(), sum.end(), outputs[rank].begin() + at);
    }
    return sum;
  });
  return outputs;
}

}  // namespace

TEST_CASE("the teaching ring and the scheduled ring do the same additions and send the same") {
  for (const size_t ranks : {1u, 2u, 3u, 5u, 7u, 12u}) {
    for (const size_t count : {ranks * 6, ranks * 6 - 1, size_t{1}, size_t{2}}) {
      std::vector<std::vector<double>> inputs(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        for (size_t i = 0; i < count; ++i) {
          // Rounds at every step.
          inputs[r].push_back(1.0 / static_cast<double>(3 + r * 17 + i * 5));
        }
      }
      std::vector<Schedule> schedules;
      for (size_t r = 0; r < ranks; ++r) {
        schedules.push_back(*algorithms::build(Collective::kAllReduce, Algorithm::kRing,
                                               static_cast<int>(ranks), static_cast<int>(r), 0));
      }
      const algorithms::TeachingResult taught = algorithms::teaching_ring_all_reduce(inputs);
      INFO(ranks << " ranks, " << count << " elements");
      CHECK(taught.outputs == walk(schedules, inputs));
      for (size_t r = 0; r < ranks; ++r) {
        const Limits limits{.element_bytes = 8, .slot_bytes = 64, .depth = 2, .align = 1};
        CHECK(
            taught.elements_sent[r] ==
            traffic_of(*lower(schedules[r], count, limits), static_cast<int>(ranks)).elements_sent);
        if (count % ranks == 0) CHECK(taught.elements_sent[r] * ranks == 2 * (ranks - 1) * count);
      }
    }
  }
}

TEST_CASE("the ring's steps are in NCCL's order") {
  const std::vector<std::string> expected{"send",
                                          "recv_reduce_send",
                                          "recv_reduce_send",
                                          "recv_reduce_copy_send",
                                          "recv_copy_send",
                                          "recv_copy_send",
                                          "recv"};
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(names(Collective::kAllReduce, Algorithm::kRing, 4, rank) == expected);
  }
  CHECK(names(Collective::kReduceScatter, Algorithm::kRing, 3, 1) ==
        std::vector<std::string>{"send", "recv_reduce_send", "recv_reduce_copy"});
  CHECK(names(Collective::kAllGather, Algorithm::kRing, 3, 1) ==
        std::vector<std::string>{"copy_send", "recv_copy_send", "recv"});
  CHECK(names(Collective::kBroadcast, Algorithm::kRing, 3, 2) == std::vector<std::string>{"recv"});
  CHECK(names(Collective::kAllReduce, Algorithm::kOneShot, 3, 0) ==
        std::vector<std::string>{"publish", "recv_reduce_copy"});
  CHECK(names(Collective::kAllReduce, Algorithm::kTwoShotDirect, 2, 0) ==
        std::vector<std::string>{"wait_posted", "reduce_push", "signal", "wait_signalled"});
  CHECK(names(Collective::kAllReduce, Algorithm::kRing, 1, 0) == std::vector<std::string>{"copy"});
  CHECK(names(Collective::kBarrier, Algorithm::kFlat, 1, 0).empty());
}

TEST_CASE("build refuses what makes no sense") {
  const auto code = [](Collective collective, Algorithm algorithm, int ranks, int rank, int root) {
    return algorithms::build(collective, algorithm, ranks, rank, root).status().code();
  };
  CHECK(code(Collective::kAllReduce, Algorithm::kFlat, 2, 0, 0) == Code::kUnavailable);
  CHECK(code(static_cast<Collective>(99), Algorithm::kRing, 2, 0, 0) == Code::kUnavailable);
  for (const auto& [ranks, rank, root] :
       {std::array{0, 0, 0}, {65537, 0, 0}, {2, 2, 0}, {2, -1, 0}, {2, 0, 2}, {2, 0, -1}}) {
    CHECK(code(Collective::kBroadcast, Algorithm::kRing, ranks, rank, root) ==
          Code::kInvalidArgument);
  }
}

TEST_CASE("one rank of thousands is built and lowered alone") {
  for (const auto& [collective, algorithm] : all_builtins()) {
    Result<Schedule> s =
        build_on(usual_hosts(algorithm, 4096), collective, algorithm, 4096, 4095, 17);
    REQUIRE(s.ok());
    CHECK(s->steps.size() <= 3 * 4096);
    CHECK(lower(*s, 1 << 20, floats(), equal_layout(collective, 4096, 1 << 20)).ok());
  }
  Result<Schedule> wide =
      algorithms::build(Collective::kAllReduce, Algorithm::kOneShot, 65536, 0, 0);
  REQUIRE(wide.ok());
  CHECK_THAT(lower(*wide, 1, floats()).status().message(), says("65536 operands does not fit"));
  Result<Schedule> ring = algorithms::build(Collective::kAllReduce, Algorithm::kRing, 65536, 0, 0);
  REQUIRE(ring.ok());
  CHECK(lower(*ring, 1, floats()).ok());
}

TEST_CASE(
    "small chunks are one slice, larger ones several, large ones rounds that fill the slots") {
  const auto channel = [](uint64_t count) {
    return lowered(Collective::kAllReduce, Algorithm::kRing, 2, count, floats()).channels[0];
  };
  Geometry g = channel(2 * 2048);  // chunks of 8 KiB
  CHECK((g.slices == 1 && g.rounds == 1));
  g = channel(2 * 4096);  // 16 KiB
  CHECK((g.slices == 2 && g.rounds == 1));
  g = channel(2 * 32768);  // 128 KiB: as many slots as a round may use
  CHECK((g.slices == 4 && g.rounds == 1 && g.slice == 8192));
  g = channel(2 * 32768 + 2);
  CHECK((g.slices == 4 && g.rounds == 2 && g.slice < 8192 && g.slice % 16 == 0));
  g = channel(uint64_t{3} << 30);  // 12 GiB
  CHECK((g.slices == 4 && g.slice == 8192 && g.rounds == (uint64_t{3} << 30) / 2 / 32768));
}

TEST_CASE(
    "chunks and channels begin at cache lines, and nothing is left for the last ones of little "
    "data") {
  Limits limits = floats();
  limits.channels = 3;
  const Program program = lowered(Collective::kAllReduce, Algorithm::kRing, 5, 1000, limits);
  for (const Geometry& g : program.channels) {
    CHECK((g.block % 16 == 0 && g.begin % 16 == 0));
  }
  const auto length_of = [](const Program& lowered, int chunk) {
    for (const Instruction& i : lowered.instructions) {
      if (i.chunk == chunk) return i.length;
    }
    return uint64_t{12345};
  };
  CHECK(length_of(program, 4) == 1000 - 4 * 208);
  const Program little = lowered(Collective::kAllReduce, Algorithm::kRing, 5, 20, limits);
  CHECK(length_of(little, 0) == 16);
  CHECK(length_of(little, 1) == 4);
  CHECK(length_of(little, 2) == 0);
  CHECK(little.channels[0].rounds == 1);
  CHECK(little.channels[2].rounds == 0);
}

TEST_CASE("signals are the same on every channel, also on those without elements") {
  Limits limits = floats();
  limits.channels = 3;
  const Program program = lowered(Collective::kAllReduce, Algorithm::kTwoShotDirect, 2, 1, limits);
  CHECK(program.signals == 1);
  for (const Geometry& g : program.channels) CHECK(g.rounds == 1);
  const Program none = lowered(Collective::kAllReduce, Algorithm::kTwoShotDirect, 2, 0, limits);
  CHECK(none.signals == 0);
  for (const Geometry& g : none.channels) CHECK(g.rounds == 0);
  // A barrier has no count, and does its work all the same.
  CHECK(lowered(Collective::kBarrier, Algorithm::kFlat, 2, 0, limits).signals == 1);
  CHECK(lowered(Collective::kBarrier, Algorithm::kRing, 2, 0, limits).channels[0].rounds == 1);
  CHECK(lowered(Collective::kBarrier, Algorithm::kFlat, 1, 0, limits).channels[0].rounds == 0);
}

TEST_CASE("lowering refuses counts beyond what can be addressed, and unusable limits") {
  const auto status = [](Collective collective, uint64_t count, const Limits& limits) {
    return lower(*algorithms::build(collective, Algorithm::kRing, 4, 1, 0), count, limits).status();
  };
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  for (const uint64_t count : {kHuge, kHuge / 4, kHuge / 2 / 4}) {
    CHECK(status(Collective::kAllReduce, count, floats()).code() == Code::kInvalidArgument);
    CHECK(status(Collective::kAllGather, count, floats()).code() == Code::kInvalidArgument);
  }
  CHECK(status(Collective::kAllGather, kHuge / 32, floats()).code() == Code::kInvalidArgument);
  CHECK(status(Collective::kAllReduce, kHuge / 32, floats()).ok());
  CHECK_THAT(status(Collective::kAllReduce, kHuge, floats()).message(),
             says("18446744073709551615"));
  Limits limits = floats();
  limits.slot_bytes = 3;
  CHECK_THAT(status(Collective::kAllReduce, 1, limits).message(), says("slot of 3 bytes"));
  limits.slot_bytes = 4;
  CHECK(status(Collective::kAllReduce, 100, limits).ok());
  limits.channels = 0;
  CHECK_THAT(status(Collective::kAllReduce, 1, limits).message(), says("0 channels"));
  limits = floats();
  limits.element_bytes = 0;
  CHECK_THAT(status(Collective::kAllReduce, 1, limits).message(), says("0 bytes"));
}

}  // namespace rondo::schedule::test
