// From the command line to the parts of a run. Knows what goes with which model; runs nothing.
#pragma once

#include <memory>
#include <string>

#include "rondo/communicator.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/models/cnn.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/schedule.hpp"

namespace rondo::trainer {

/// The data at `path`, which may hold {rank}, as the options' model reads it. For an empty
/// path: default_text(), which rank 0 logs.
Result<std::unique_ptr<Dataset>> open_data(const TrainOptions& options, const std::string& path,
                                           uint64_t rank);

/// The models that options describe.
MlpShape mlp_shape(const TrainOptions& options);
GptShape gpt_shape(const TrainOptions& options);
CnnShape cnn_shape(const TrainOptions& options, const SampleShape& shape);

/// For samples of that shape. `statistics`: the communicator of synchronized batch norm, borrowed;
/// null without it. Throws std::bad_alloc.
template <class T>
std::unique_ptr<Model<T>> make_model(const TrainOptions& options, const SampleShape& shape,
                                     Communicator* statistics);

ScheduleOptions schedule_options(const TrainOptions& options, uint64_t global_batch,
                                 uint64_t last_step);

}  // namespace rondo::trainer
