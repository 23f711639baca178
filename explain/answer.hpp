// The page's questions, answered by rondo's own schedules, verifier and cost model. The same code is compiled for
// WebAssembly, where the page calls it, and natively, where a test compares every answer of the two.
#pragma once

#include <string>
#include <string_view>

namespace rondo::explain {

/// The answer to {"question": NAME, ...}, as JSON on one line: what explain/answers/ says, or {"error": "a sentence"}
/// for anything else. Pure: the same request has the same answer on every machine.
std::string answer(std::string_view request_json);

}  // namespace rondo::explain
