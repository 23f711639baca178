// own_gradients [ROUNDS [MIB]]: what it costs to register gradients (DdpTensor::gradient). Steps of
// two DistributedDataParallel in turns: one copies the caller's gradients to its buckets and back, in
// the other they live in the buckets. Backward is a write of each gradient, which is then reported.
// Gradients of 64 KiB to MIB (64) MiB. Start it with `rondo-run -n 2 -- own_gradients`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rondo/rondo.hpp"

using namespace rondo;

namespace {

constexpr size_t kTensors = 16, kWarmUps = 3;

/// A step with this value as gradient; microseconds, on the slowest rank.
Result<double> step_us(DistributedDataParallel& ddp, float value) {
  Communicator& world = ddp.communicator();
  RONDO_TRY(world.barrier());
  const auto begin = std::chrono::steady_clock::now();
  RONDO_TRY(ddp.begin({.loss_terms = 1}));
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    std::fill_n(ddp.gradient<float>(t), ddp.tensors()[t].count(), value);
    ddp.gradient_ready(t);
  }
  RONDO_TRY(ddp.finish());
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  double us = took.count();
  RONDO_TRY(world.all_reduce(&us, &us, 1, DataType::kFloat64, ReduceOp::kMax));
  return us;
}

/// The mean over ranks 0 .. N - 1 of rank + 1, everywhere.
Status require_mean(DistributedDataParallel& ddp) {
  const float mean = static_cast<float>(ddp.communicator().size() + 1) / 2;
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    const float* const values = ddp.gradient<float>(t);
    const size_t count = ddp.tensors()[t].count();
    if (std::count(values, values + count, mean) == static_cast<ptrdiff_t>(count)) continue;
    return {Code::kDataError, "the gradient of tensor " + std::to_string(t) + " is wrong"};
  }
  return {};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Status measure(Communicator& world, size_t bytes, size_t rounds) {
  const size_t count = bytes / sizeof(float) / kTensors;
  std::vector<DdpTensor> tensors, registered;
  std::vector<std::vector<float>> gradients(kTensors, std::vector<float>(count));
  for (size_t t = 0; t < kTensors; ++t) {
    tensors.push_back({.name = std::to_string(t), .shape = {count}});
    registered.push_back(tensors.back());
    registered.back().gradient = gradients[t].data();
  }
  auto in_buckets = RONDO_TRY(DistributedDataParallel::create(world, tensors));
  auto copied = RONDO_TRY(DistributedDataParallel::create(world, registered));
  RONDO_TRY(in_buckets.replicate());
  RONDO_TRY(copied.replicate());
  std::vector<double> in_buckets_us, copied_us, ratios;
  for (size_t round = 0; round < kWarmUps + rounds; ++round) {
    const auto value = static_cast<float>(world.rank() + 1);
    const double first = RONDO_TRY(step_us(round % 2 == 0 ? in_buckets : copied, value));
    const double second = RONDO_TRY(step_us(round % 2 == 0 ? copied : in_buckets, value));
    if (round < kWarmUps) continue;
    in_buckets_us.push_back(round % 2 == 0 ? first : second);
    copied_us.push_back(round % 2 == 0 ? second : first);
    ratios.push_back(copied_us.back() / in_buckets_us.back());
  }
  RONDO_TRY(require_mean(in_buckets));
  RONDO_TRY(require_mean(copied));
  if (world.rank() == 0) {
    std::printf("| %zu | %.1f | %.1f | %.2f |\n", bytes >> 10, median(in_buckets_us),
                median(copied_us), median(ratios));
  }
  return {};
}

Status run(size_t rounds, size_t most_bytes) {
  Communicator world = RONDO_TRY(Communicator::create());
  if (world.rank() == 0) {
    std::printf(
        "%zu tensors, %d ranks, medians of %zu rounds\n\n"
        "| gradients (KiB) | in buckets (us) | registered (us) | ratio |\n"
        "| ---: | ---: | ---: | ---: |\n",
        kTensors, world.size(), rounds);
  }
  for (size_t bytes = size_t{64} << 10; bytes <= most_bytes; bytes *= 4) {
    RONDO_TRY(measure(world, bytes, rounds));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 41, mib = argc > 2 ? std::atol(argv[2]) : 64;
  if (argc > 3 || rounds < 1 || mib < 1 || mib > 1024) {
    std::fprintf(stderr,
                 "own_gradients [ROUNDS [MIB]]: whole numbers from 1 on, at most 1024 MiB\n");
    return 2;
  }
  const Status status = run(static_cast<size_t>(rounds), static_cast<size_t>(mib) << 20);
  if (!status.ok()) std::fprintf(stderr, "own_gradients: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
