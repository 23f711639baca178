// A training loop of your own on rondo/ddp.hpp: y = w x + b, fitted to y = 3 x - 1 by all ranks
// together. Build it against an installed rondo, with this folder among those of includes; start it
// with `rondo-run -n 4 -- ./toy_ddp FILE`.
#include <algorithm>
#include <counting_hook.hpp>
#include <cstdio>
#include <rondo/rondo.hpp>
#include <string>
#include <vector>

using namespace rondo;

namespace {

constexpr uint64_t kSamples = 1000, kBatch = 10, kEpochs = 5, kSeed = 1;
constexpr float kRate = 0.5f, kMomentum = 0.5f;

float x_of(uint64_t sample) { return static_cast<float>(sample) / kSamples; }

Status run(const std::string &checkpoint) {
  // Start: which rank this is, the others, and the device (cores, or a GPU by its local rank).
  std::optional<Place> place = RONDO_TRY(place_from_launcher());
  const int device = place ? place->local_rank : 0;
  Communicator ranks = RONDO_TRY(Communicator::create());

  // Model: parameters in the order in which backward finishes their gradients.
  const auto hook = std::make_shared<CountingHook>();  // optional: {} is an all-reduce per bucket
  DistributedDataParallel ddp = RONDO_TRY(DistributedDataParallel::create(
      ranks, {{.name = "b", .shape = {1}}, {.name = "w", .shape = {1}}}, {},
      {.gradients = DdpOptions::Gradients::kOfSum, .hook = hook}));
  float *b = ddp.parameter<float>(0), *w = ddp.parameter<float>(1);
  float *db = ddp.gradient<float>(0), *dw = ddp.gradient<float>(1);
  float *parameters = b, *gradients = db;  // the first tensor begins the flat storage
  std::vector<float> velocity(ddp.parameter_elements());
  RONDO_TRY(ddp.replicate());

  DistributedSampler sampler({.samples = kSamples,
                              .ranks = static_cast<uint64_t>(ranks.size()),
                              .rank = static_cast<uint64_t>(ranks.rank()),
                              .seed = kSeed});
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (uint64_t first = 0; first < sampler.size(); first += kBatch) {
      const uint64_t end = std::min(first + kBatch, sampler.size());
      RONDO_TRY(ddp.begin({.loss_terms = end - first,
                           .end_of_data = end == sampler.size(),
                           .epoch = epoch,
                           .sample_hash = sampler.index(first) + 1}));
      *db = *dw = 0;  // of the sum of (w x + b - y)^2 / 2; rondo divides by all ranks' terms
      for (uint64_t i = first; i < end; ++i) {
        const float x = x_of(sampler.index(i)), error = *w * x + *b - (3 * x - 1);
        *db += error;
        *dw += error * x;
      }
      ddp.gradient_ready(0);  // b's all-reduce may start while others are still computed
      ddp.gradient_ready(1);
      RONDO_TRY(ddp.finish());
      for (size_t i = 0; i < velocity.size(); ++i) {
        velocity[i] = kMomentum * velocity[i] + gradients[i];
        parameters[i] -= kRate * velocity[i];
      }
    }
  }
  RONDO_TRY(ddp.save(checkpoint, {{"momentum", velocity.data()}}, {{"by", "toy"}}));
  std::printf("rank %d on device %d: w %.2f b %.2f, %zu bytes of gradients\n", ranks.rank(), device,
              *w, *b, hook->bytes);
  return {};
}

}  // namespace

int main(int argc, char **argv) {
  const Status status = run(argc > 1 ? argv[1] : "toy.safetensors");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
