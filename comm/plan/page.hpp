// The page that explains (explain/), with a machine's own numbers in it. Finds the built page and writes data into it;
// computes and draws nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::plan {

/// Where the page lies: installed beside this program, or built in its tree. kUnavailable, with what to do: nowhere.
Result<std::string> find_page();

struct PageData {
  std::string profile;  // JSON; empty: the built-in one
  std::vector<std::string>
      measured;  // paths of rondo-perf's, scripts/compare's and rondo-train's JSON
};

/// `page` with the data in its block of JSON, in which nothing can end the block or be executed, whatever strings the
/// files hold. Errors: a file that cannot be read, is not JSON, is of another program, or is too large; a page without
/// the block.
Result<std::string> with_data(std::string_view page, const PageData& data);

}  // namespace rondo::plan
