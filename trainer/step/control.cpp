// See control.hpp.
#include "trainer/step/control.hpp"

#include <algorithm>

#include "trainer/base/clock.hpp"
#include "trainer/data/loader.hpp"
#include "trainer/report/report.hpp"

namespace rondo::trainer {
namespace {

/// Keeps what a backward pass reports, to report it after the pass.
class BackwardNotes : public BackwardListener {
 public:
  void layer_begins(int /*layer*/) override {}
  void gradient_ready(int parameter, size_t count) override {
    ready_.push_back({static_cast<size_t>(parameter), count});
  }
  void gradient_skipped(int parameter) override {
    skipped_.push_back(static_cast<size_t>(parameter));
  }
  void forget() {
    ready_.clear();
    skipped_.clear();
  }
  void tell(DistributedDataParallel& ddp) const {
    for (const auto& [tensor, count] : ready_) ddp.gradient_ready(tensor, count);
    for (const size_t tensor : skipped_) ddp.gradient_skipped(tensor);
  }

 private:
  std::vector<std::pair<size_t, size_t>> ready_;
  std::vector<size_t> skipped_;
};

template <class T>
class Control {
 public:
  Control(const ControlParts<T>& parts, const Batch& batch)
      : p_(parts), ddp_(parts.weights.ddp()), adds_(!ddp_.is_sharded()), batch_(batch) {}

  Result<ControlTimes> run() {
    std::vector<double> pass_ms, cost_ms;
    for (uint64_t i = 0; i <= p_.options.control_steps; ++i) {
      const double alone = RONDO_TRY(compute());
      const double reduced = RONDO_TRY(compute_then_reduce());
      if (i == 0) continue;  // first touches, plans
      pass_ms.push_back(alone);
      cost_ms.push_back(reduced);
    }
    return ControlTimes{
        .steps = p_.options.control_steps, .pass_ms = median(pass_ms), .cost_ms = median(cost_ms)};
  }

 private:
  static double ms_since(int64_t begin_ns) { return to_ms(now_ns() - begin_ns); }

  Result<double> compute() {
    RONDO_TRY(p_.communicator.barrier());
    const int64_t begin_ns = now_ns();
    const Pass pass{.training = true, .seed = p_.options.seed, .step = 0};
    for (uint64_t micro = 0; micro < p_.options.accum; ++micro) {
      RONDO_TRY(p_.model.forward(batch_, pass).status());
      notes_.forget();
      RONDO_TRY(
          p_.model.backward(batch_, pass, p_.weights.loss_scale(), adds_ || micro > 0, notes_));
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

}  // namespace

template <class T>
Result<ControlTimes> control_run(const ControlParts<T>& parts) {
  if (parts.options.control_steps == 0) return ControlTimes{};
  // Batches of its own: the loop's loader must not notice.
  std::unique_ptr<Loader> loader =
      RONDO_TRY(Loader::create(parts.data, parts.sampler, {.batch = parts.options.batch}));
  loader->start_epoch({});
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
