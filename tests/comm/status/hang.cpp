// A job that hangs until somebody helps: rank 0 stops itself before the second operation, the
// others wait for it, all in a ring. It ends well once rank 0 is continued. With an argument the
// others have a communicator of their own besides.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "rondo/rondo.hpp"

int main(int argc, char**) {
  rondo::Config config;
  config.name = "training";
  config.algorithm = rondo::Algorithm::kRing;
  auto made = rondo::Communicator::create(config);
  if (!made.ok()) return std::fprintf(stderr, "%s\n", made.status().to_string().c_str()), 1;
  rondo::Communicator& world = *made;
  std::optional<rondo::Communicator> part;
  if (argc > 1) {
    auto split = world.split(world.rank() == 0 ? rondo::Communicator::kNoColor : 0, 0);
    if (!split.ok()) return std::fprintf(stderr, "%s\n", split.status().to_string().c_str()), 1;
    part = std::move(*split);
  }
  std::vector<float> data(3000, 1);
  for (int i = 0; i < 2; ++i) {
    if (i == 1 && world.rank() == 0) raise(SIGSTOP);
    const rondo::Status status =
        world.all_reduce(data.data(), data.data(), data.size(), rondo::DataType::kFloat32);
    if (!status.ok()) return std::fprintf(stderr, "%s\n", status.to_string().c_str()), 1;
  }
  return 0;
}
