// The questions that the page may ask, a function for each, one file for each. A function reads its fields with
// PageRequest and returns JSON, or a sentence why there is no answer. explain/README.md lists the fields.
#pragma once

#include "explain/request.hpp"

namespace rondo::explain {

Result<Json> about(const PageRequest& request);
Result<Json> bill(const PageRequest& request);
Result<Json> profile(const PageRequest& request);
Result<Json> predict(const PageRequest& request);
Result<Json> schedule_steps(const PageRequest& request);
Result<Json> verify_schedule(const PageRequest& request);
Result<Json> replay(const PageRequest& request);
Result<Json> scaling(const PageRequest& request);

}  // namespace rondo::explain
