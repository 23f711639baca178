// rondo.Communicator and rondo.Work: the C API's handles, with the arrays that operations use.
// Methods hold the GIL while they read their arguments, and release it while they wait.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "python/src/array.hpp"
#include "python/src/gil.hpp"
#include "python/src/interrupt.hpp"
#include "rondo/rondo.h"

namespace rondo::python {

/// Throws rondo.Error with the code's name, this rank and the text of this thread's last failure.
/// If a signal's Python handler has raised, that exception instead.
void check(rondo_code code, int rank);

/// The library's text as a str. What is not UTF-8 becomes U+FFFD: variables, names and texts of other
/// ranks may hold any bytes.
nb::object str_of(std::string_view text);

/// Throws rondo.Error with this text.
[[noreturn]] void fail(rondo_code code, const std::string& text, int rank);

/// Throws ValueError for a negative time, or none.
int64_t milliseconds(double seconds);

/// How many forks led to this process, from the one that loaded the module.
int forks();

class PyCommunicator;

/// An operation in flight. Keeps its communicator and arrays.
class PyWork {
 public:
  PyWork(nb::object owner, rondo_work* work, std::vector<Array> arrays, nb::object result);
  PyWork(PyWork&& other) noexcept;
  PyWork& operator=(PyWork&&) = delete;
  ~PyWork();  // of an operation that has not ended: its communicator keeps the arrays

  nb::object wait();
  bool test() const;
  nb::tuple times() const;
  nb::object envelope() const;

 private:
  nb::object owner_;
  rondo_work* work_;
  std::vector<Array> arrays_;
  nb::object result_;
};

class PyCommunicator {
 public:
  struct Creation {
    int rank = -1, world_size = -1;
    std::optional<std::string> rendezvous, unique_id, name, pace, links, algorithm;
    nb::object all_gather = nb::none();
    std::optional<double> stall_timeout, bootstrap_timeout;
    int channels = 0, max_channels = 0, slots = 0;
    size_t slot_bytes = 0;
    bool reproducible = false;
    int device = -1;
  };
  explicit PyCommunicator(const Creation& settings);
  /// A part of another one.
  PyCommunicator(rondo_communicator* handle, bool on_device)
      : handle_(handle), rank_(rondo_rank(handle)), on_device_(on_device) {}
  ~PyCommunicator();
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;

  /// For a new call: throws ValueError once close() has begun, and in a forked child.
  rondo_communicator* handle() const;
  /// For abort() and what tells about a close() that waits.
  rondo_communicator* handle_until_closed() const;
  /// Throws ValueError in a forked child.
  void expect_own_process() const;
  rondo_communicator* const* handle_address() const { return &handle_; }
  bool* in_wait_handler() { return &in_wait_handler_; }
  int rank() const { return rank_; }  // also after close()
  bool on_device() const { return on_device_; }
  int size() const { return rondo_size(handle()); }
  /// Waits until every asynchronous operation has ended; throws the communicator's error.
  void finish();
  /// Abandons an open group, waits as finish() does, and leaves. Throws if the ranks have disagreed
  /// about a call and this rank has not been told.
  void close();
  /// Returns the code of a call or a Work, and remembers that it told of a disagreement.
  rondo_code note(rondo_code code) {
    told_ = told_ || code == RONDO_MISMATCH;
    return code;
  }

  /// Keeps arrays that a group, or an operation whose Work was dropped, still uses.
  void keep(rondo_work* work, std::vector<Array> arrays);
  void group_start();
  void group_end();
  /// Ends a group whose calls must not run.
  void group_abandon(const std::string& reason);
  bool in_group() const { return group_depth_ > 0; }

  /// call(handle) without the GIL: close() waits for its end.
  template <class Call>
  rondo_code run(const Call& call) {
    rondo_communicator* const open = handle();
    const InCall in_call(*this);
    rondo_code code = RONDO_OK;
    {
      const ReleasedGil released;
      code = call(open);
    }
    return note(code);
  }
  /// The same, but signal handlers run during the call. Throws the exception that one raises.
  template <class Call>
  rondo_code run_interruptible(const Call& call) {
    handle();  // open, and no handler is inside
    Interruptible interruptible(&handle_, &in_handler_);
    const rondo_code code = run(call);  // a handler may have closed this communicator before
    interruptible.throw_raised();
    return code;
  }

 private:
  class InCall {
   public:
    explicit InCall(PyCommunicator& self) : self_(self) { ++self_.calls_; }
    ~InCall() { --self_.calls_; }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    PyCommunicator& self_;
  };
  struct Kept {
    rondo_work* work;  // null: until the group's end
    std::vector<Array> arrays;
  };
  static bool has_ended(const Kept& kept);
  /// Out of kept_ come those that `chosen` chooses. Runs no Python.
  template <class Chosen>
  std::vector<Kept> take(const Chosen& chosen);
  /// Finalizers of these arrays run here, and may use this communicator: they are not in kept_.
  static void drop(std::vector<Kept> taken);

  void leave_group();
  /// Throws ValueError if a handler of a signal interrupts a call of this communicator.
  void expect_no_call() const;
  rondo_code wait_for_all();    // a handler that raises ends it
  void wait_for_calls() const;  // of other threads; a handler that raises ends it
  void destroy();

  rondo_communicator* handle_ = nullptr;
  int rank_ = -1;
  bool on_device_ = false;
  std::vector<Kept> kept_;
  int group_depth_ = 0;
  int calls_ = 0;
  bool closing_ = false;
  bool told_ = false;             // by an Error that the ranks disagree
  bool in_handler_ = false;       // of a signal that interrupts a call
  bool in_wait_handler_ = false;  // of one that interrupts a wait for a Work, finish() or close()
  int forks_ = forks();
};

/// None where there is no message.
nb::object envelope_of(const rondo_envelope& envelope);

/// Adds both classes to the module.
void bind_communicator(nb::module_& module);
void bind_collectives(nb::class_<PyCommunicator>& communicator);
void bind_messages(nb::class_<PyCommunicator>& communicator);

}  // namespace rondo::python
