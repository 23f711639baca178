// Signals while the main thread is inside a blocking call. Python only notes a signal and runs its handler
// when the main thread is back in Python, so rondo's wait callback lets handlers run meanwhile. If one
// raises, as Ctrl-C's does, the communicator is aborted, which every rank learns, and the call raises
// that exception.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <optional>

#include "rondo/rondo.h"

namespace rondo::python {

/// Python's main thread, in which alone it runs handlers. Without it none runs during a call.
void set_main_thread(pthread_t thread);

/// While it lives, handlers run during calls of rondo by this thread. Does nothing outside the main
/// thread. `communicator`: the one that is aborted; null: none. `*in_handler` is true while handlers
/// run. Made with the GIL held; throws the exception of a signal that came before.
class Interruptible {
 public:
  Interruptible(rondo_communicator* communicator, bool* in_handler);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  /// After the call, with the GIL: throws what a handler has raised.
  void throw_raised();

 private:
  static void run_handlers(void* self);

  bool active_;
  rondo_communicator* communicator_;
  bool* in_handler_;
  Interruptible* outer_ = nullptr;  // of the call that a handler of this one interrupts
  std::optional<nanobind::python_error> raised_;
};

}  // namespace rondo::python
