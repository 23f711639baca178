// Programs without exceptions can include rondo. Only compiled.
#include "rondo/rondo.hpp"

int use_rondo_without_exceptions();

int use_rondo_without_exceptions() {
  auto made = rondo::Communicator::create();
  return made.ok() && made->barrier().ok() ? 0 : 1;
}
