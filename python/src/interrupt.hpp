// Ctrl-C while the main thread is inside a blocking call: the call ends, and Python raises
// KeyboardInterrupt. Python's own handler only notes the signal until the call returns, so a thread
// aborts the communicator, which every rank learns. Only where Python's default handler is in place:
// a handler of the program's own runs after the call.
#pragma once

#include "rondo/rondo.h"

namespace rondo::python {

/// Call once, from the main thread, when the module is loaded.
void catch_interrupts();

/// While it lives, Ctrl-C aborts this communicator. Only in the main thread; elsewhere, and with
/// null, it does nothing, because KeyboardInterrupt is raised in the main thread alone. Made with the
/// GIL held; throws the exception of a signal that came before.
class Interruptible {
 public:
  explicit Interruptible(rondo_communicator* communicator);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  bool active_;
};

}  // namespace rondo::python
