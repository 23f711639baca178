// See control.hpp.
#include "trainer/step/control.hpp"

#include <algorithm>

#include "trainer/base/clock.hpp"
#include "trainer/report/report.hpp"

namespace rondo::trainer {
namespace {

template <class T>
class Control {
 public:
  Control(const ControlParts<T>& parts, const Batch& batch)
      : p_(parts), ddp_(parts.weights.ddp()), adds_(!ddp_.is_sharded()), batch_(batch) {}

  Result<ControlTimes> run() {
    return control_rounds(
        *p_.options.control_steps, [this] { return compute(); },
        [this] { return compute_then_reduce(); });
  }

 private:
  static double ms_since(int64_t begin_ns) { return to_ms(now_ns() - begin_ns); }

  Result<double> compute() {
    RONDO_TRY(p_.communicator.barrier());
    const int64_t begin_ns = now_ns();
    const Pass pass{.training = true, .seed = p_.options.seed, .step = 0};
    for (uint64_t micro = 0; micro < p_.options.accum; ++micro) {
      double loss = 0;
      RONDO_TRY(p_.model.forward(batch_, pass, &loss));
      notes_.forget();
      RONDO_TRY(p_.model.backward(batch_, pass, double{p_.weights.loss_scale()}, adds_ || micro > 0,
                                  notes_));
    }
    return ms_since(begin_ns);
  }

  Result<double> compute_then_reduce() {
    RONDO_TRY(ddp_.begin({.loss_terms = batch_.size * p_.model.loss_terms() * p_.options.accum}));
    for (size_t t = ddp_.tensors().size(); t-- > 0 && ddp_.tensors()[t].adds_to >= 0;) {
      ddp_.touches_rows(t, {batch_.tokens, batch_.size * p_.data.shape().context});
    }
    RONDO_TRY(compute().status());
    RONDO_TRY(p_.communicator.barrier());  // no rank comes late
    const int64_t begin_ns = now_ns();
    notes_.tell(ddp_);
    RONDO_TRY(ddp_.finish());
    return ms_since(begin_ns);
  }

  const ControlParts<T>& p_;
  DistributedDataParallel& ddp_;
  const bool adds_;  // as the steps' backward does, though here to what the last pass has left
  const Batch batch_;
  BackwardNotes notes_;
};

template <class T>
std::vector<std::vector<T>> copy_buffers(DistributedDataParallel& ddp) {
  std::vector<std::vector<T>> copies;
  for (size_t b = 0; b < ddp.buffers().size(); ++b) {
    const T* values = static_cast<const T*>(ddp.buffer(b));
    copies.emplace_back(values, values + ddp.buffers()[b].count());
  }
  return copies;
}

/// Other work on the machine makes some passes longer, and none shorter.
double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 4];
}

}  // namespace

uint64_t control_steps_of(const TrainOptions& options, uint64_t samples, int ranks) {
  constexpr uint64_t kLeast = 3, kMost = 10, kShare = 10;
  if (options.control_steps) return *options.control_steps;
  if (ranks == 1 || options.strategy == "dp" || options.layer_drop > 0) return 0;
  uint64_t steps = options.steps;
  if (steps == 0) {
    if (options.data_by_rank()) return kLeast;  // every rank has other samples
    steps =
        options.epochs * samples / (options.batch * options.accum * static_cast<uint64_t>(ranks));
  }
  // By chance fewer passes differ by more than overlap saves.
  return steps < kLeast * kShare ? 0 : std::min(steps / kShare, kMost);
}

Result<ControlTimes> control_rounds(uint64_t steps, const std::function<Result<double>()>& compute,
                                    const std::function<Result<double>()>& compute_then_reduce) {
  // The first passes of a process touch memory for the first time, and threads begin to read data.
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i) RONDO_TRY(compute().status());
  std::vector<double> pass_ms, cost_ms;
  for (uint64_t i = 0; i <= steps; ++i) {
    const double alone = RONDO_TRY(compute());
    const double reduced = RONDO_TRY(compute_then_reduce());
    if (i == 0) continue;  // it makes plans
    pass_ms.push_back(alone);
    cost_ms.push_back(reduced);
  }
  return ControlTimes{
      .steps = steps, .pass_ms = lower_quartile(pass_ms), .cost_ms = lower_quartile(cost_ms)};
}

Result<std::unique_ptr<Loader>> open_control_loader(const TrainOptions& options,
                                                    const Dataset& data,
                                                    const DistributedSampler& sampler) {
  std::unique_ptr<Loader> loader =
      RONDO_TRY(Loader::create(data, sampler, {.batch = options.batch}));
  loader->start_epoch({});
  return loader;
}

template <class T>
Result<ControlTimes> control_run(const ControlParts<T>& parts) {
  if (parts.options.control_rounds() == 0) return ControlTimes{};
  const std::unique_ptr<Loader> loader =
      RONDO_TRY(open_control_loader(parts.options, parts.data, parts.sampler));
  const Batch batch = RONDO_TRY(loader->next());

  DistributedDataParallel& ddp = parts.weights.ddp();
  const std::vector<std::vector<T>> buffers = copy_buffers<T>(ddp);
  Result<ControlTimes> times = Control<T>(parts, batch).run();
  parts.weights.clear_gradients();
  for (size_t b = 0; b < buffers.size(); ++b) {
    std::copy(buffers[b].begin(), buffers[b].end(), static_cast<T*>(ddp.buffer(b)));
  }
  return times;
}

template Result<ControlTimes> control_run(const ControlParts<float>&);
template Result<ControlTimes> control_run(const ControlParts<double>&);

}  // namespace rondo::trainer
