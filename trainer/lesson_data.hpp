// What lessons train on: small texts and pictures made up here, the same on every machine, so that
// a lesson shows the same numbers everywhere. Not for training anything else.
#pragma once

#include <string>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// Writes into `folder`: text, long and with something to learn in it; short, the same with few
/// samples; share-0 and share-1, of different lengths; pictures/ and validation/, IDX files of
/// noisy bars in four classes.
Status write_lesson_data(const std::string& folder);

}  // namespace rondo::trainer
