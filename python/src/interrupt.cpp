// See interrupt.hpp.
#include "python/src/interrupt.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "python/src/gil.hpp"

namespace rondo::python {
namespace {

namespace nb = nanobind;

std::optional<pthread_t> main_thread;
Interruptible* innermost = nullptr;  // the main thread's

}  // namespace

void set_main_thread(pthread_t thread) {
  if (!main_thread || pthread_equal(*main_thread, thread) == 0)
    innermost = nullptr;  // another one's
  main_thread = thread;
}

Interruptible::Interruptible(rondo_communicator* const* communicator, bool* in_handler)
    : active_(main_thread && pthread_equal(pthread_self(), *main_thread) != 0),
      communicator_(communicator),
      in_handler_(in_handler) {
  if (!active_) return;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  outer_ = std::exchange(innermost, this);
  rondo_set_wait_callback(run_handlers, this);
}

Interruptible::~Interruptible() {
  if (!active_) return;
  innermost = outer_;
  rondo_set_wait_callback(outer_ != nullptr ? run_handlers : nullptr, outer_);
}

void Interruptible::throw_raised() {
  if (raised_) throw std::move(*raised_);
}

// rondo calls it without the GIL, from inside the call. No exception may leave it.
void Interruptible::run_handlers(void* self) {
  auto& call = *static_cast<Interruptible*>(self);
  if (call.raised_) return;  // the call is about to end
  const HeldGil gil;
  const bool was_in_handler = std::exchange(*call.in_handler_, true);
  const bool raised = PyErr_CheckSignals() != 0;
  *call.in_handler_ = was_in_handler;
  if (!raised) return;
  call.raised_.emplace();
  std::string reason = "a signal handler has raised an exception";
  try {
    if (call.raised_->matches(PyExc_KeyboardInterrupt)) {
      reason = "interrupted by Ctrl-C (SIGINT)";
    } else {
      const nb::object described = nb::module_::import_("rondo._error").attr("described");
      reason =
          "a signal handler has raised " + nb::cast<std::string>(described(call.raised_->value()));
    }
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  if (*call.communicator_ != nullptr) rondo_abort(*call.communicator_, reason.c_str());
}

}  // namespace rondo::python
