// --lesson NAME: runs a lesson's children and prints what they show. Trains nothing itself.
#pragma once

#include <string>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// Prints the lesson to stdout; "list": the names. What the children wrote stays in `folder`, so
/// that their commands can be repeated; without one, nowhere, unless the symptom did not show. An
/// error if there is no such lesson, if this process is a rank itself, or if the symptom did not
/// show.
Status teach(const std::string& name, const std::string& folder);

}  // namespace rondo::trainer
