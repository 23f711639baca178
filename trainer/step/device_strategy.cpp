// See device_strategy.hpp.
#include "trainer/step/device_strategy.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <functional>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "trainer/lessons/sabotage.hpp"
#include "trainer/models/cuda_models.hpp"
#include "trainer/optim/cuda/device_weights.hpp"
#include "trainer/optim/cuda/load_kernels.hpp"
#include "trainer/optim/sharding.hpp"
#include "trainer/report/accounting.hpp"
#include "trainer/report/summary.hpp"
#include "trainer/step/buckets.hpp"
#include "trainer/step/device_control.hpp"
#include "trainer/step/device_model.hpp"
#include "trainer/step/device_replica.hpp"
#include "trainer/step/device_step.hpp"
#include "trainer/step/setup.hpp"

namespace rondo::trainer {
namespace {

template <class T>
Result<std::unique_ptr<Model<T>>> make_model_on(Device& device, const TrainOptions& options,
                                                const SampleShape& shape, SumOverRanks sum) {
  if (options.model == "gpt") return make_cuda_gpt<T>(device, gpt_shape(options));
  if (options.model == "mlp") return make_cuda_mlp<T>(device, mlp_shape(options));
  return make_cuda_cnn<T>(device, cnn_shape(options, shape), std::move(sum));
}

template <class T>
class TrainerOf final : public DeviceTrainer {
 public:
  TrainerOf(const TrainOptions& options, std::unique_ptr<Device> device, Communicator& on_device,
            Communicator& host)
      : options_(options), device_(std::move(device)), communicator_(on_device), host_(host) {}

  Status open(const SampleShape& shape) try {
    load_kernels(*device_);  // while no rank's kernel can wait for this one's
    RONDO_TRY(device_->status());
    if (options_.sync_batch_norm) {
      statistics_ = RONDO_TRY(BatchNormSums::open(*device_, communicator_, host_));
    }
    inner_ = RONDO_TRY(make_model_on<T>(*device_, options_, shape, sum_over_ranks()));
    model_.emplace(*device_, *inner_);
    weights_.emplace(RONDO_TRY(DeviceWeights<T>::create({.device = *device_,
                                                         .model = *inner_,
                                                         .communicator = communicator_,
                                                         .host = host_,
                                                         .options = options_})));
    return device_->status();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }

  /// Other ranks' kernels may wait for this one's.
  void give_up(const Status& why) {
    communicator_.abort(why.message());
    host_.abort(why.message());  // or its own end would wait for ranks that wait for this one there
    if (statistics_) statistics_->abort(why.message());
  }

  Model<float>& model() override { return *model_; }

  Status train(Run<float>& run) override {
    const Status status = or_out_of_memory([&] { return train_until_end(run); });
    if (!status.ok()) give_up(status);
    return status;
  }

  Status train_replica(Run<float>& run, const ReplicaStrategy& strategy) override {
    if constexpr (std::is_same_v<T, float>) {
      const Status status = or_out_of_memory([&] { return train_by(run, strategy); });
      if (!status.ok()) give_up(status);
      return status;
    } else {
      return {Code::kUnavailable, "--strategy dp on a GPU is for --dtype fp32"};
    }
  }

 private:
  Status out_of_memory() const {
    return {Code::kResourceExhausted,
            fmt::format(
                "rank {}: GPU {} has not enough memory for --layers {} --width {} --batch {}: {}",
                host_.rank(), device_->number(), options_.layers, options_.width, options_.batch,
                device_->status().message())};
  }

  template <class Call>
  auto or_out_of_memory(const Call& call) const -> decltype(call()) try {
    return call();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }

  SumOverRanks sum_over_ranks() {
    if (!statistics_) return nullptr;
    return [this](double* values, size_t count) { return statistics_->sum(values, count); };
  }

  Status train_until_end(Run<float>& run) {
    run.readers = run.samples.workers();
    run.device_ddp = &weights_->ddp();
    run.on_device = &communicator_;
    RONDO_TRY(begin_run(run));
    RONDO_TRY(begin_buckets(run));
    RONDO_TRY(weights_->upload(run.weights));
    if (run.reports()) {
      announce(run.facts());
      spdlog::info("rank 0 computes on GPU {}: {}", device_->number(), device_->name());
    }
    Timeline timeline = RONDO_TRY(Timeline::open(options_.trace, host_.rank(), inner_->layers(),
                                                 collectives_of(weights_->ddp())));
    DeviceClock clock(*device_, &weights_->ddp(), std::move(timeline), !options_.trace.empty());
    std::function<void()> drain;  // a failure is the next call's
    BrokenForward forward(
        options_, host_, inner_->layers().size(), [&drain] { drain(); }, clock);
    const DeviceStepParts<T> parts{.options = options_,
                                   .device = *device_,
                                   .communicator = communicator_,
                                   .host = host_,
                                   .model = *inner_,
                                   .weights = *weights_,
                                   .samples = run.samples,
                                   .stop = run.stop,
                                   .clock = clock,
                                   .forward = forward,
                                   .statistics = statistics_ ? &*statistics_ : nullptr,
                                   .gradient_factor = gradient_factor(options_, host_.size())};
    const ControlTimes control = RONDO_TRY(control_run(parts, run.data));
    DeviceStep<T> step(parts);
    drain = [&step] { (void)step.settle(); };
    BucketWatch<float> watch(run);
    uint64_t fetched = weights_->updates();  // after which the run's weights have the values
    const auto settle = [&] { return step.settle(); };
    const auto fetch = [&]() -> Status {
      if (std::exchange(fetched, weights_->updates()) == weights_->updates()) return {};
      return weights_->download(run.weights);
    };
    const auto make_step = [&](uint64_t number, double rate) -> Result<StepResult> {
      StepResult made = RONDO_TRY(step.run(number, rate));
      run.uncounted_bytes = step.graphs().uncounted_bytes();
      RONDO_TRY(watch.look(number));
      return made;
    };
    const Result<End> end = or_out_of_memory([&] {
      return make_steps(run, {.step = make_step,
                              .await = settle,
                              .last_report = [&] { return step.last(); },
                              .settle = settle,
                              .fetch = fetch});
    });
    // Before `step` is destroyed, which waits for the device.
    if (!end.ok()) give_up(end.status());
    RONDO_TRY(end.status());
    RONDO_TRY(clock.close(host_));
    return conclude(run, end.value(), step.graphs().steps(), control, clock);
  }

  Status train_by(Run<float>& run, const ReplicaStrategy& strategy) {
    run.device_ddp = &weights_->ddp();
    run.on_device = &communicator_;
    DeviceReplica replica({.options = options_,
                           .device = *device_,
                           .communicator = communicator_,
                           .host = host_,
                           .model = *inner_,
                           .weights = *weights_,
                           .mirror = run.weights});
    const Status status = or_out_of_memory([&] { return strategy(run, replica); });
    if (!status.ok()) give_up(status);  // before `replica` is destroyed, which waits for the device
    return status;
  }

  Result<ControlTimes> control_run(const DeviceStepParts<T>& parts, const Dataset& data) {
    if (options_.control_rounds() == 0) return ControlTimes{};
    DeviceControl<T> control(parts, data);
    Result<ControlTimes> times = or_out_of_memory([&] { return control.run(); });
    if (!times.ok()) give_up(times.status());  // before `control` is destroyed, likewise
    return times;
  }

  Status conclude(Run<float>& run, const End& end, uint64_t replayed, const ControlTimes& control,
                  const DeviceClock& clock) {
    RONDO_TRY(require_same_parameters(end));
    if (!run.reports()) return {};
    nlohmann::ordered_json summary =
        summarize(run.facts(), *run.report, end.bytes_sent, end.hashes[0]);
    summary["device"] = device_->name();
    if (run.weights.scaler()) {
      summary["skipped_steps"] = run.weights.scaler()->state().skipped_steps;
      summary["loss_scale"] = run.weights.scaler()->scale();
    }
    summary["replayed_steps"] = replayed;
    if (control.steps > 0 && run.step > run.first_step) {
      account_on_device(control, clock.optimizer_ms(), summary);
    }
    return run.report->finish(std::move(summary));
  }

  const TrainOptions& options_;
  const std::unique_ptr<Device> device_;  // outlives what is on it
  Communicator& communicator_;
  Communicator& host_;
  std::optional<BatchNormSums> statistics_;  // of synchronized batch norm
  std::unique_ptr<Model<T>> inner_;
  std::optional<DeviceModel<T>> model_;
  std::optional<DeviceWeights<T>> weights_;
};

template <class T>
Result<std::unique_ptr<DeviceTrainer>> open(const TrainOptions& options, const SampleShape& shape,
                                            RankDevice& on, Communicator& host) {
  std::unique_ptr<Device> device = RONDO_TRY(Device::open(on.number));
  device->set_tf32(options.tf32);
  auto trainer = std::make_unique<TrainerOf<T>>(options, std::move(device), on.communicator, host);
  const Status opened = trainer->open(shape);
  if (!opened.ok()) trainer->give_up(opened);  // before its memory is freed
  RONDO_TRY(opened);
  return std::unique_ptr<DeviceTrainer>(std::move(trainer));
}

}  // namespace

Result<std::unique_ptr<DeviceTrainer>> open_device_trainer(const TrainOptions& options,
                                                           const SampleShape& shape,
                                                           RankDevice& device, Communicator& host) {
  if (options.dtype == "bf16") return open<cuda::BFloat16Bits>(options, shape, device, host);
  if (options.dtype == "fp16") return open<cuda::Float16Bits>(options, shape, device, host);
  return open<float>(options, shape, device, host);
}

}  // namespace rondo::trainer
