// Misspelt RONDO_ variables, which would otherwise have no effect and no message.
#pragma once

#include <string>
#include <vector>

namespace rondo::comm {

/// A sentence for each RONDO_ variable of `environment` ("NAME=value", ending in null) that is
/// neither in kEnvironment nor in kForeignVariables, with the nearest that is in kEnvironment, if
/// one is similar.
std::vector<std::string> unknown_variables(const char* const* environment);

}  // namespace rondo::comm
