// A job that hangs until somebody helps: rank 0 stops itself before the second operation, the
// others wait for it, all in a ring. It ends well once rank 0 is continued. With "parts" the others
// have a communicator of their own besides, with "rows" one of that name; with "message" rank 1 waits for a message of rank 0's;
// with "hierarchical" that algorithm is used, and rank 3 stops in place of rank 0, whose process would have the host's agent.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/rondo.hpp"

namespace {

int failed(const rondo::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "";
  rondo::Config config;
  config.name = "training";
  config.algorithm =
      how == "hierarchical" ? rondo::Algorithm::kHierarchical : rondo::Algorithm::kRing;
  auto made = rondo::Communicator::create(config);
  if (!made.ok()) return failed(made.status());
  rondo::Communicator& world = *made;
  std::optional<rondo::Communicator> part;
  if (how == "parts" || how == "rows") {
    auto split = world.split(world.rank() == 0 ? rondo::Communicator::kNoColor : 0, 0,
                             how == "rows" ? how : "");
    if (!split.ok()) return failed(split.status());
    part = std::move(*split);
  }
  std::vector<float> data(3000, 1);
  if (how == "message") {
    if (world.rank() == 0) raise(SIGSTOP);
    const rondo::Status status =
        world.rank() == 0 ? world.send(data.data(), data.size(), rondo::DataType::kFloat32, 1)
                          : world.recv(data.data(), data.size(), rondo::DataType::kFloat32, 0);
    return status.ok() ? 0 : failed(status);
  }
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && world.rank() == (how == "hierarchical" ? 3 : 0)) raise(SIGSTOP);
    const rondo::Status status =
        world.all_reduce(data.data(), data.data(), data.size(), rondo::DataType::kFloat32);
    if (!status.ok()) return failed(status);
  }
  return 0;
}
