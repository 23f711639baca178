// See setup.hpp.
#include "trainer/step/setup.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "trainer/data/corpus.hpp"

namespace rondo::trainer {
namespace {

DataKind kind_of(const TrainOptions& options) {
  if (options.data_format == "images") return DataKind::kImages;
  if (options.data_format == "tokens") return DataKind::kTokenWindows;
  return options.model == "mlp" ? DataKind::kNextByte : DataKind::kByteWindows;
}

SampleShape wanted_shape(const TrainOptions& options) {
  if (options.model == "cnn") return {.classes = options.classes};
  if (options.model == "gpt") {
    return {.context = options.context, .targets = options.context, .classes = options.vocabulary};
  }
  return {.context = MlpShape::kContext, .targets = 1, .classes = MlpShape::kClasses};
}

/// The index of `name`, which parse_options() has checked.
template <size_t N>
size_t index_in(const std::string_view (&names)[N], const std::string& name) {
  return static_cast<size_t>(std::find(std::begin(names), std::end(names), name) - names);
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_data(const TrainOptions& options, const std::string& path,
                                           uint64_t rank) {
  std::string where = path_for_rank(path, rank);
  if (where.empty()) {
    std::string text = RONDO_TRY(default_text());
    if (rank == 0) spdlog::info("no --data: trains on rondo's licence, {}", text);
    where = text;
  }
  return open_dataset(kind_of(options), where, wanted_shape(options));
}

MlpShape mlp_shape(const TrainOptions& options) {
  return {.layers = options.layers, .width = options.width, .batch = options.batch};
}

GptShape gpt_shape(const TrainOptions& options) {
  return {.layers = options.layers,
          .width = options.width,
          .heads = options.heads,
          .context = options.context,
          .vocabulary = options.vocabulary,
          .batch = options.batch,
          .dropout = options.dropout,
          .layer_drop = options.layer_drop,
          .split_tied = !options.no_split_tied};
}

CnnShape cnn_shape(const TrainOptions& options, const SampleShape& shape) {
  return {.layers = options.layers,
          .width = options.width,
          .channels = shape.channels,
          .height = shape.height,
          .width_pixels = shape.width,
          .classes = options.classes,
          .batch = options.batch,
          .synchronized = options.sync_batch_norm};
}

template <class T>
std::unique_ptr<Model<T>> make_model(const TrainOptions& options, const SampleShape& shape,
                                     Communicator* statistics) {
  if (options.model == "gpt") return make_gpt<T>(gpt_shape(options));
  if (options.model == "mlp") return make_mlp<T>(mlp_shape(options));
  SumOverRanks sum;
  if (statistics != nullptr) {
    sum = [statistics](double* values, size_t count) {
      return statistics->all_reduce(values, values, count, DataType::kFloat64);
    };
  }
  return make_cnn<T>(cnn_shape(options, shape), std::move(sum));
}

template std::unique_ptr<Model<float>> make_model(const TrainOptions&, const SampleShape&,
                                                  Communicator*);
template std::unique_ptr<Model<double>> make_model(const TrainOptions&, const SampleShape&,
                                                   Communicator*);

ScheduleOptions schedule_options(const TrainOptions& options, uint64_t global_batch,
                                 uint64_t last_step) {
  return {.base_rate = options.lr,
          .scale = static_cast<LrScale>(index_in(kLrScaleNames, options.lr_scale)),
          .base_batch = options.base_batch,
          .global_batch = global_batch,
          .warmup_steps = options.warmup,
          .decay = static_cast<LrDecay>(index_in(kLrDecayNames, options.lr_decay)),
          .min_rate = options.min_lr,
          .last_step = last_step};
}

}  // namespace rondo::trainer
