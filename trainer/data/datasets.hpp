// The kinds of data behind open_dataset(). For dataset.cpp only.
#pragma once

#include <memory>
#include <string>

#include "trainer/data/dataset.hpp"

namespace rondo::trainer {

Result<std::unique_ptr<Dataset>> open_bytes(DataKind kind, const std::string& path,
                                            const SampleShape& shape);
Result<std::unique_ptr<Dataset>> open_tokens(const std::string& path, const SampleShape& shape);
Result<std::unique_ptr<Dataset>> open_images(const std::string& path, const SampleShape& shape);

}  // namespace rondo::trainer
