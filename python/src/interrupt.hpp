// Signals while the main thread is inside a blocking call. Python only notes a signal and runs its handler
// when the main thread is back in Python, so rondo's wait callback runs handlers during the call. If one
// raises, as Ctrl-C's does, the communicator is aborted on all ranks, and the call raises that
// exception.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <optional>

#include "rondo/rondo.h"

namespace rondo::python {

/// Names Python's main thread, the only one that runs handlers. Until then no handler runs in a call.
void set_main_thread(pthread_t thread);

/// While it lives, handlers run during calls of rondo by this thread. Does nothing outside the main
/// thread. `*communicator`, which may be or become null, is aborted if a handler raises; both are used
/// with the GIL held. `*in_handler` is true while handlers run. The constructor needs the GIL, and throws the exception of an earlier signal.
class Interruptible {
 public:
  Interruptible(rondo_communicator* const* communicator, bool* in_handler);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  /// After the call, with the GIL: throws what a handler has raised.
  void throw_raised();

 private:
  static void run_handlers(void* self);

  bool active_;
  rondo_communicator* const* communicator_;
  bool* in_handler_;
  Interruptible* outer_ = nullptr;  // of the call that a handler of this one interrupts
  std::optional<nanobind::python_error> raised_;
};

}  // namespace rondo::python
