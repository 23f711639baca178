// A library of collectives so simple that it is plainly right, with one fault at a time to order:
// what the harness is tested with. Ranks are threads; every operation is two barriers with plain
// loops between. Float sums only.
#pragma once

#include <barrier>
#include <cstring>
#include <vector>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

enum class Fault { kNone, kMissing, kDoubled, kMisplaced, kFlipped, kSpoilsInput };

struct ThreadWorld {
  explicit ThreadWorld(int size) : ranks(size), line(size), inputs(static_cast<size_t>(size)) {}
  int ranks;
  std::barrier<> line;
  std::vector<const void*> inputs;
  Fault fault = Fault::kNone;
  std::vector<double> times_us = {};  // of each rank, instead of the clock's
};

class ThreadBackend final : public Backend {
 public:
  ThreadBackend(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}

  std::string name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return world_.ranks; }
  Status supports(const CallShape&) const override { return {}; }
  Status barrier() override {
    world_.line.arrive_and_wait();
    return {};
  }

  Result<double> time(const BackendCall& operation, size_t iterations) override {
    if (world_.times_us.empty()) return Backend::time(operation, iterations);
    return world_.times_us[static_cast<size_t>(rank_)];
  }

  Status run(const BackendCall& operation) override {
    const CallShape& shape = operation.shape;
    world_.inputs[static_cast<size_t>(rank_)] = operation.in;
    std::vector<std::byte> result(out_elements(shape, world_.ranks) * size_of(shape.type));
    world_.line.arrive_and_wait();
    if (shape.collective == Collective::kAllReduce) {
      sum(shape.count, 0, result.data());
    } else if (shape.collective == Collective::kReduceScatter) {
      sum(shape.count, static_cast<size_t>(rank_) * shape.count, result.data());
    } else if (shape.collective == Collective::kAllGather) {
      const size_t block = shape.count * size_of(shape.type);
      for (size_t r = 0; r < world_.inputs.size(); ++r) {
        std::memcpy(result.data() + r * block, world_.inputs[r], block);
      }
    } else if (shape.collective == Collective::kBroadcast) {
      std::memcpy(result.data(), world_.inputs[static_cast<size_t>(shape.root)], result.size());
    }
    world_.line.arrive_and_wait();
    std::memcpy(operation.out, result.data(), result.size());
    if (world_.fault == Fault::kSpoilsInput && rank_ == 1 && reduces(shape.collective)) {
      static_cast<std::byte*>(const_cast<void*>(operation.in))[0] ^= std::byte{1};
    }
    return {};
  }

 private:
  void sum(size_t count, size_t offset, void* out) const {
    auto* sums = static_cast<float*>(out);
    const auto input = [&](size_t r, size_t i) {
      return static_cast<const float*>(world_.inputs[r])[offset + i];
    };
    for (size_t i = 0; i < count; ++i) {
      float result = 0;
      for (size_t r = 0; r < world_.inputs.size(); ++r) {
        const bool last = r + 1 == world_.inputs.size();
        if (last && world_.fault == Fault::kMissing) continue;
        result +=
            last && world_.fault == Fault::kMisplaced ? input(r, (i + 1) % count) : input(r, i);
        if (last && world_.fault == Fault::kDoubled) result += input(r, i);
      }
      sums[i] = result;
    }
    if (world_.fault == Fault::kFlipped && rank_ == 0) sums[count / 2] += 1;
  }

  ThreadWorld& world_;
  int rank_;
};

}  // namespace rondo::bench
