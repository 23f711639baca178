// A rank that starts other programs: child_of_rank live|gone WHO COMMAND... makes a communicator, keeps it or not, and
// runs COMMAND on rank WHO, or on "all". child_of_rank alone only makes a communicator.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "rondo/rondo.hpp"

int main(int argc, char** argv) {
  auto made = rondo::Communicator::create({});
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().to_string().c_str());
    return 3;
  }
  if (argc < 4) return made->barrier().ok() ? 0 : 4;
  const std::string how = argv[1], who = argv[2];
  const bool runs = who == "all" || who == std::to_string(made->rank());
  if (!made->barrier().ok()) return 4;
  std::optional<rondo::Communicator> kept(std::move(*made));
  if (how == "gone") kept.reset();
  const int status = runs ? std::system(argv[3]) : 0;
  if (kept && !kept->barrier().ok()) return 4;  // the others wait for the rank that runs it
  return status == 0 ? 0 : 5;
}
