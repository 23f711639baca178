// The interpreter's lock around waits. A thread that asks for the lock when the interpreter has ended is
// ended by Python (up to 3.13) by unwinding its stack, which destructors and noexcept functions answer by
// std::terminate. Such a thread stops here instead, until the process ends.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace rondo::python {

/// Calls `take`, which asks for the lock.
template <class Take>
void take_gil(const Take& take) {
  try {
    take();
  } catch (...) {  // only pthread_exit() comes here
    for (;;) ::pause();
  }
}

/// Releases the lock while it lives.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

/// internal::Holds it while it lives, in a thread that may hold it already.
class HeldGil {
 public:
  HeldGil() {
    take_gil([this] { state_ = PyGILState_Ensure(); });
  }
  ~HeldGil() { PyGILState_Release(state_); }
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;

 private:
  PyGILState_STATE state_{};
};

}  // namespace rondo::python
