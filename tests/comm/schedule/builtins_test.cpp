// Proves every built-in schedule, lowered, for many numbers of ranks, counts, FIFO depths and
// channels, in and out of place, alone and in pairs of different operations over the same FIFOs.
#include "tests/comm/schedule/builtins.hpp"

namespace rondo::schedule::test {
namespace {

/// Each to 17, and those around the next power of two.
std::vector<int> few_ranks() {
  std::vector<int> ranks;
  for (int n = 1; n <= (kSanitized ? 5 : 17); ++n) ranks.push_back(n);
  if (!kSanitized) ranks.insert(ranks.end(), {31, 32, 33});
  return ranks;
}

/// Elements per chunk that lead to at least three rounds: a round is at most depth / 2 slots of 16
/// elements.
uint64_t three_rounds(uint32_t depth) { return std::max(1u, depth / 2) * 16 * 2 + 7; }

uint64_t large_count(Collective collective, int ranks, uint32_t depth) {
  const bool divided = collective == Collective::kAllReduce;
  return three_rounds(depth) * static_cast<uint64_t>(divided ? ranks : 1) + 1;
}

/// The first, the second, and the first again.
void prove_in_turn(const Builtin& first, const Builtin& second, int ranks, int channels,
                   const SharedHosts& hosts = nullptr) {
  const uint32_t depth =
      std::max(least_depth(first.first, first.second), least_depth(second.first, second.second));
  const Limits limits = tiny(depth, channels);
  OperationShape one = shape_of(first, ranks, large_count(first.first, ranks, depth), ranks - 1);
  OperationShape other = shape_of(second, ranks, static_cast<uint64_t>(ranks) * 9 + 1);
  one.hosts = other.hosts = hosts;
  one.in_place = algorithms::is_in_place_safe(first.first, first.second);
  other.in_place = ranks % 2 == 1 && algorithms::is_in_place_safe(second.first, second.second);
  INFO(describe(one, limits) << ", then " << describe(other, limits));
  const LoweredOperation a = operation(one, limits), b = operation(other, limits);
  const Status status = verdict({a, b, a}, limits);
  if (!status.ok()) FAIL(status.to_string());
}

void prove_depths_and_places(OperationShape shape) {
  const uint32_t least = least_depth(shape.collective, shape.algorithm);
  for (const uint32_t depth : {least, 4u, 8u}) {
    for (const bool in_place : {false, true}) {
      shape.in_place = in_place;
      prove(shape, tiny(depth));
    }
  }
}

}  // namespace

TEST_CASE("every built-in is proved for few ranks, at every edge count") {
  for (const Builtin& builtin : all_builtins()) {
    for (const int n : few_ranks()) {
      const auto u = static_cast<uint64_t>(n);
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, u - 1, u, u + 1}) {
        prove_depths_and_places(shape_of(builtin, n, count, n / 2));
      }
    }
  }
}

TEST_CASE("every built-in is proved over several rounds and channels") {
  for (const Builtin& builtin : all_builtins()) {
    for (const int n : few_ranks()) {
      for (const uint32_t depth : {least_depth(builtin.first, builtin.second), 6u}) {
        for (const int channels : {1, 2, 3}) {
          const uint64_t count = large_count(builtin.first, n, depth);
          OperationShape shape =
              shape_of(builtin, n, static_cast<uint64_t>(channels) * count, n - 1);
          shape.in_place = channels != 2;
          prove(shape, tiny(depth, channels));
          shape.in_place = !shape.in_place;
          if (n < 9) prove(shape, tiny(depth, channels));
        }
      }
    }
  }
}

TEST_CASE("every built-in is proved for 64 and 256 ranks") {
  for (const Builtin& builtin : all_builtins()) {
    for (const int n : kSanitized ? std::vector<int>{16} : std::vector<int>{64, 256}) {
      const uint32_t depth = least_depth(builtin.first, builtin.second);
      OperationShape shape = shape_of(builtin, n, large_count(builtin.first, n, depth), 1);
      prove(shape, tiny(depth));
      shape.in_place = true;
      shape.count = static_cast<uint64_t>(n) + 1;
      prove(shape, tiny(depth));
    }
  }
}

TEST_CASE("every root is proved") {
  for (const Builtin& builtin : all_builtins()) {
    if (!internal::is_rooted(builtin.first)) continue;
    for (const int n : {1, 2, 3, 5, 8}) {
      for (int root = 0; root < n; ++root) {
        prove_depths_and_places(shape_of(builtin, n, large_count(builtin.first, n, 4), root));
      }
    }
  }
}

TEST_CASE("consecutive different operations share FIFOs without getting in each other's way") {
  for (const auto& first : builtins()) {
    for (const auto& second : builtins()) {
      for (const int n : {1, 2, 3, 4, 5, 7, 8, 16, 17}) {
        if (kSanitized && n != 3) continue;
        prove_in_turn(first, second, n, 2);
      }
    }
  }
}

TEST_CASE("so do operations between hosts, whichever algorithms they go by") {
  for (const Builtin& first : hierarchical_builtins()) {
    for (const Builtin& second : builtins_between_hosts()) {
      for (const auto& hosts :
           {consecutive({2, 2}), consecutive({1, 3, 2}), hosts_of({0, 1, 2, 0, 1, 2, 1})}) {
        if (kSanitized && hosts->ranks() != 4) continue;
        prove_in_turn(first, second, hosts->ranks(), 2, hosts);
      }
    }
  }
}

// All pairs of so many ranks would take minutes: each built-in meets a few others, before and
// behind it; of 256 ranks every third.
TEST_CASE("so do those of 64, 128 and 256 ranks", "[again]") {
  struct Pairing {
    int ranks;
    std::vector<size_t> strides;  // through the list of built-ins, from one to the other
    size_t every;
  };
  const std::vector<Builtin> all = builtins();
  for (const Pairing& pairing :
       {Pairing{64, {1, 7, 18}, 1}, Pairing{128, {5}, 1}, Pairing{256, {12}, 3}}) {
    for (const size_t stride : pairing.strides) {
      for (size_t i = 0; i < all.size(); i += pairing.every) {
        prove_in_turn(all[i], all[(i + stride) % all.size()], pairing.ranks, 1);
      }
    }
  }
}

TEST_CASE("the ring sends exactly 2(N-1)/N of the data, its halves (N-1)/N, and so does two-shot") {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTwoShot}) {
    for (const uint64_t n : {2, 3, 5, 6, 7, 16}) {
      const uint64_t block = 120, all = block * n;
      const auto check = [&](Collective collective, uint64_t count, uint64_t sent_by_all) {
        const LoweredOperation op =
            operation(shape_of({collective, algorithm}, static_cast<int>(n), count), tiny(4));
        for (const uint64_t sent : report_of(op, tiny(4)).elements_sent) {
          CHECK(sent * n == sent_by_all);
        }
      };
      check(Collective::kAllReduce, all, 2 * (n - 1) * all);
      check(Collective::kReduceScatter, block, (n - 1) * all);
      check(Collective::kAllGather, block, (n - 1) * all);
    }
  }
}

TEST_CASE("exactly the algorithms that say so fold in rank order") {
  for (const int n : {5, 6, 7}) {
    for (const auto& [collective, algorithm] : all_builtins()) {
      if (!internal::form_of(collective).reduces) continue;
      const LoweredOperation op = operation(shape_of({collective, algorithm}, n, 100), tiny(4));
      const bool in_order = report_of(op, tiny(4)).rank_order;
      INFO(name(algorithm) << " " << name(collective) << ", " << n << " ranks");
      for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
        if (is_scan(collective) && type == DataType::kBFloat16) continue;
        CHECK(in_order == algorithms::folds_in_rank_order(collective, algorithm, type));
      }
    }
  }
}

}  // namespace rondo::schedule::test
