// See communicator.hpp.
#include "python/src/communicator.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include "python/src/interrupt.hpp"
#include "rondo/types.hpp"

namespace rondo::python {
namespace {

/// The caller's all-gather, as the C API calls it, from any thread.
struct AllGatherCall {
  nb::object callable;  // bytes -> one bytes per rank
  size_t ranks;
  int rank;
  std::optional<nb::python_error> failure;

  static int call(void* context, const void* own, size_t bytes, void* all) noexcept {
    const HeldGil gil;
    auto& self = *static_cast<AllGatherCall*>(context);
    try {
      size_t given = 0;
      for (const nb::handle each : self.callable(nb::bytes(own, bytes))) {
        const auto blob = nb::cast<nb::bytes>(each);
        if (blob.size() != bytes) {
          self.refuse("a blob of " + std::to_string(blob.size()) + " bytes, not " +
                      std::to_string(bytes));
        }
        if (given == self.ranks) {
          self.refuse("more than " + std::to_string(given) + " blobs for as many ranks");
        }
        std::memcpy(static_cast<std::byte*>(all) + given++ * bytes, blob.data(), bytes);
      }
      if (given == self.ranks) return 0;
      self.refuse(std::to_string(given) + " blobs for " + std::to_string(self.ranks) + " ranks");
    } catch (nb::python_error& error) {
      self.failure.emplace(std::move(error));
    } catch (...) {
    }
    return 1;
  }

  [[noreturn]] void refuse(const std::string& given) const {
    fail(RONDO_BOOTSTRAP,
         "all_gather on rank " + std::to_string(rank) + " gave " + given +
             ": it must give every rank's blob, whole, in rank order",
         rank);
  }
};

const char* text_or_null(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

rondo_config config_of(const PyCommunicator::Creation& settings, AllGatherCall& all_gather) {
  rondo_config config;
  rondo_config_init(&config, sizeof config);
  config.rank = settings.rank;
  config.world_size = settings.world_size;
  config.rendezvous = text_or_null(settings.rendezvous);
  config.unique_id = text_or_null(settings.unique_id);
  config.name = text_or_null(settings.name);
  config.pace = text_or_null(settings.pace);
  config.links = text_or_null(settings.links);
  config.channels = settings.channels;
  config.max_channels = settings.max_channels;
  config.slots = settings.slots;
  config.slot_bytes = settings.slot_bytes;
  config.reproducible = settings.reproducible ? 1 : 0;
  config.device = settings.device;
  if (settings.stall_timeout) config.stall_timeout_ms = milliseconds(*settings.stall_timeout);
  if (settings.bootstrap_timeout) {
    config.bootstrap_timeout_ms = milliseconds(*settings.bootstrap_timeout);
  }
  if (settings.algorithm) {
    const auto algorithm = internal::parse<Algorithm>(*settings.algorithm, kAlgorithmNames);
    if (!algorithm) throw nb::value_error(("no algorithm \"" + *settings.algorithm + "\"").c_str());
    config.algorithm = static_cast<rondo_algorithm>(*algorithm);
  }
  if (!settings.all_gather.is_none()) {
    config.all_gather = AllGatherCall::call;
    config.all_gather_context = &all_gather;
  }
  return config;
}

/// Waits in slices, so that Ctrl-C ends it. The creation then goes on without an owner.
void wait_interruptibly(const rondo_pending* pending) {
  for (int over = 0; over == 0;) {
    {
      const ReleasedGil released;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      rondo_pending_test(pending, &over);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

[[noreturn]] void refuse_in_handler() {
  throw nb::value_error(
      "this communicator is inside a call, which a signal's handler interrupts: the handler may "
      "call abort(), use another communicator, or set a variable that the program reads after the "
      "call");
}

int forks_so_far = 0;  // a child changes it before it has a second thread

}  // namespace

int forks() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { ++forks_so_far; });
  return forks_so_far;
}

int64_t milliseconds(double seconds) {
  constexpr double kYear = 365 * 86400.0;
  if (seconds >= 0 && seconds <= kYear) return static_cast<int64_t>(std::ceil(seconds * 1000));
  throw nb::value_error("a time is given in seconds, from 0 to a year");
}

void check(rondo_code code, int rank) {
  if (code == RONDO_OK) return;
  const std::string text = rondo_last_error();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  fail(code, text, rank);
}

nb::object str_of(std::string_view text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal(decoded);
}

void fail(rondo_code code, const std::string& text, int rank) {
  const nb::object type = nb::module_::import_("rondo._error").attr("Error");
  const nb::object error = type(str_of(text), rondo_code_name(code), rank);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

PyWork::PyWork(nb::object owner, rondo_work* work, std::vector<Array> arrays, nb::object result)
    : owner_(std::move(owner)),
      work_(work),
      arrays_(std::move(arrays)),
      result_(std::move(result)) {}

PyWork::PyWork(PyWork&& other) noexcept
    : owner_(std::move(other.owner_)),
      work_(std::exchange(other.work_, nullptr)),
      arrays_(std::move(other.arrays_)),
      result_(std::move(other.result_)) {}

PyWork::~PyWork() {
  if (work_ == nullptr) return;
  nb::cast<PyCommunicator&>(owner_).keep(work_, std::move(arrays_));
}

nb::object PyWork::wait() {
  auto& communicator = nb::cast<PyCommunicator&>(owner_);
  communicator.expect_own_process();
  rondo_code code = RONDO_OK;
  Interruptible interruptible(communicator.handle_address(), communicator.in_wait_handler());
  {
    const ReleasedGil released;
    code = rondo_work_wait(work_);
  }
  std::vector<Array> used;
  if (test()) used.swap(arrays_);  // a bytearray may now be resized
  interruptible.throw_raised();
  check(communicator.note(code), communicator.rank());
  return result_;
}

bool PyWork::test() const {
  nb::cast<PyCommunicator&>(owner_).expect_own_process();
  int ended = 0;
  rondo_work_test(work_, &ended);
  return ended != 0;
}

nb::tuple PyWork::times() const {
  nb::cast<PyCommunicator&>(owner_).expect_own_process();
  rondo_work_times times;
  rondo_get_work_times(work_, &times, sizeof times);
  return nb::make_tuple(times.issued_ns, times.started_ns, times.ended_ns);
}

nb::object PyWork::envelope() const {
  nb::cast<PyCommunicator&>(owner_).expect_own_process();
  rondo_envelope envelope;
  rondo_get_work_envelope(work_, &envelope, sizeof envelope);
  return envelope_of(envelope);
}

PyCommunicator::PyCommunicator(const Creation& settings) {
  AllGatherCall all_gather{.callable = settings.all_gather,
                           .ranks = static_cast<size_t>(std::max(settings.world_size, 0)),
                           .rank = settings.rank,
                           .failure = {}};
  const rondo_config config = config_of(settings, all_gather);
  rondo_code code = RONDO_OK;
  bool in_handler = false;
  Interruptible interruptible(&handle_, &in_handler);
  if (settings.all_gather.is_none()) {
    rondo_pending* pending = nullptr;
    check(rondo_create_async(&pending, &config), settings.rank);
    wait_interruptibly(pending);
    const ReleasedGil released;
    code = rondo_pending_wait(pending, &handle_);
  } else {  // the caller's own all-gather belongs to this thread, as MPI's may
    const ReleasedGil released;
    code = rondo_create(&handle_, &config);
  }
  try {
    if (all_gather.failure) throw std::move(*all_gather.failure);
    interruptible.throw_raised();
    check(code, settings.rank);
  } catch (...) {  // a handler may have raised when the communicator had been created
    destroy();
    throw;
  }
  rank_ = rondo_rank(handle_);
  on_device_ = settings.device >= 0;
}

PyCommunicator::~PyCommunicator() { destroy(); }

void PyCommunicator::expect_no_call() const {
  if (in_handler_) refuse_in_handler();
}

rondo_communicator* PyCommunicator::handle() const {
  expect_no_call();
  if (closing_) throw nb::value_error("this communicator is closed");
  return handle_until_closed();
}

rondo_communicator* PyCommunicator::handle_until_closed() const {
  if (handle_ == nullptr) throw nb::value_error("this communicator is closed");
  expect_own_process();
  return handle_;
}

void PyCommunicator::expect_own_process() const {
  if (forks_ == forks()) return;
  throw nb::value_error(
      "this communicator belongs to the process that forked this one: start processes that use "
      "rondo by rondo-run, or by multiprocessing's \"spawn\", and create a communicator there");
}

rondo_code PyCommunicator::wait_for_all() {
  Interruptible interruptible(&handle_, &in_wait_handler_);
  rondo_code code = RONDO_OK;
  {
    const ReleasedGil released;
    code = rondo_finish(handle_);
  }
  interruptible.throw_raised();
  return code;
}

void PyCommunicator::wait_for_calls() const {
  while (calls_ > 0) {
    {
      const ReleasedGil released;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (PyErr_CheckSignals() == 0) continue;
    const auto raised = std::make_exception_ptr(nb::python_error());
    rondo_abort(handle_, "interrupted while it waited for another thread's call");
    std::rethrow_exception(raised);
  }
}

void PyCommunicator::finish() {
  handle();
  const rondo_code code = note(wait_for_all());
  drop(take(has_ended));
  check(code, rank());
}

void PyCommunicator::close() {
  if (handle_ == nullptr) return;
  if (in_wait_handler_) refuse_in_handler();
  expect_no_call();
  if (std::exchange(closing_, true)) return;
  std::string disagreement;
  if (forks_ == forks()) {
    while (group_depth_ > 0) {
      rondo_group_abandon(handle_, "the communicator was closed");
      leave_group();
    }
    try {
      wait_for_calls();
      // Every other failure is reported by its Work.
      if (wait_for_all() == RONDO_MISMATCH && !told_) disagreement = rondo_last_error();
    } catch (...) {  // a signal that came before
      closing_ = false;
      throw;
    }
  }
  destroy();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  if (!disagreement.empty()) fail(RONDO_MISMATCH, disagreement, rank());
}

void PyCommunicator::destroy() {
  if (handle_ == nullptr) return;
  rondo_communicator* const ending = std::exchange(handle_, nullptr);
  {
    const ReleasedGil released;
    rondo_destroy(ending);  // waits for what is outstanding
  }
  drop(std::exchange(kept_, {}));
}

void PyCommunicator::keep(rondo_work* work, std::vector<Array> arrays) {
  int ended = 0;
  if (work != nullptr) rondo_work_test(work, &ended);
  if (ended != 0) {
    rondo_work_release(work);
    return;
  }
  kept_.push_back({work, std::move(arrays)});
  drop(take(has_ended));
}

bool PyCommunicator::has_ended(const Kept& kept) {
  int over = 0;
  if (kept.work != nullptr) rondo_work_test(kept.work, &over);
  return over != 0;
}

template <class Chosen>
std::vector<PyCommunicator::Kept> PyCommunicator::take(const Chosen& chosen) {
  const auto first =
      std::partition(kept_.begin(), kept_.end(), [&](const Kept& kept) { return !chosen(kept); });
  std::vector<Kept> taken;
  std::move(first, kept_.end(), std::back_inserter(taken));
  kept_.erase(first, kept_.end());
  return taken;
}

void PyCommunicator::drop(std::vector<Kept> taken) {
  for (const Kept& kept : taken) rondo_work_release(kept.work);
}

void PyCommunicator::group_start() {
  check(rondo_group_start(handle()), rank());
  ++group_depth_;
}

void PyCommunicator::group_end() {
  const int rank = this->rank();
  const rondo_code code = run_interruptible(rondo_group_end);
  leave_group();
  check(code, rank);
}

void PyCommunicator::group_abandon(const std::string& reason) {
  const rondo_code code = rondo_group_abandon(handle(), reason.c_str());
  leave_group();
  check(code, rank());
}

void PyCommunicator::leave_group() {
  group_depth_ -= group_depth_ > 0 ? 1 : 0;
  if (group_depth_ > 0) return;
  drop(take([](const Kept& kept) { return kept.work == nullptr; }));
}

namespace {

nb::dict plan(const PyCommunicator& self, const std::string& collective, size_t count,
              const std::string& type, const std::string& op, bool library_memory) {
  const auto chosen = internal::parse<Collective>(collective, kCollectiveNames);
  const auto reduced = internal::parse<ReduceOp>(op, kReduceOpNames);
  if (!chosen) throw nb::value_error(("no collective \"" + collective + "\"").c_str());
  if (!reduced) throw nb::value_error(("no operator \"" + op + "\"").c_str());
  rondo_plan found;
  check(rondo_get_plan(self.handle(), static_cast<rondo_collective>(*chosen), count,
                       static_cast<rondo_data_type>(type_named(type, "dtype")),
                       static_cast<rondo_reduce_op>(*reduced), library_memory ? 1 : 0, RONDO_AUTO,
                       &found, sizeof found),
        self.rank());
  nb::dict plan;
  plan["algorithm"] = std::string(name(static_cast<Algorithm>(found.algorithm)));
  plan["channels"] = found.channels;
  plan["predicted_us"] = found.predicted_us;
  plan["bytes_sent_per_rank"] = found.bytes_sent_per_rank;
  return plan;
}

nb::dict stats(const PyCommunicator& self) {
  rondo_stats counted;
  check(rondo_get_stats(self.handle(), &counted, sizeof counted), self.rank());
  nb::dict stats;
  stats["operations"] = counted.operations;
  stats["bytes_sent"] = counted.bytes_sent;
  stats["shared_bytes"] = counted.shared_bytes;
  return stats;
}

nb::object flight_record(const PyCommunicator& self) {
  size_t needed = 0;
  std::string text;
  do {  // it grows while it is read
    text.resize(needed);
    check(rondo_flight_record(self.handle_until_closed(), text.data(), text.size(), &needed),
          self.rank());
  } while (needed > text.size());
  text.resize(needed == 0 ? 0 : needed - 1);
  return str_of(text);
}

/// null: this rank has no part. `create` is called with the GIL released.
template <class Create>
PyCommunicator* part_of(PyCommunicator& self, const Create& create) {
  const int rank = self.rank();
  rondo_communicator* part = nullptr;
  try {
    check(self.run_interruptible([&](rondo_communicator* from) { return create(from, &part); }),
          rank);
  } catch (...) {  // a handler may have raised when the part had been created
    if (part != nullptr) {
      const ReleasedGil released;
      rondo_abort(part, "a signal handler has raised an exception");
      rondo_destroy(part);
    }
    throw;
  }
  return part == nullptr ? nullptr : new PyCommunicator(part, self.on_device());
}

PyCommunicator* split(PyCommunicator& self, std::optional<int32_t> color, int32_t key,
                      const std::optional<std::string>& name) {
  return part_of(self, [&](rondo_communicator* from, rondo_communicator** part) {
    return rondo_split_named(from, color.value_or(RONDO_NO_COLOR), key, text_or_null(name), part);
  });
}

PyCommunicator* duplicate(PyCommunicator& self) { return part_of(self, rondo_duplicate); }

PyCommunicator* shrink(PyCommunicator& self, std::optional<double> patience) {
  const int64_t patience_ms = patience ? milliseconds(*patience) : 0;
  return part_of(self, [&](rondo_communicator* from, rondo_communicator** left) {
    return rondo_shrink(from, patience_ms, left);
  });
}

void register_device_memory(PyCommunicator& self, nb::handle array) {
  const Array seen = array_of(array, true, "array");
  if (!self.on_device()) {
    fail(RONDO_INVALID_ARGUMENT,
         "register_device_memory: this communicator is not on a device; library memory of the host "
         "comes "
         "from rondo.empty()",
         self.rank());
  }
  check(self.run_interruptible([&](rondo_communicator* c) {
    return rondo_register_device_memory(c, seen.data, seen.count * size_of(seen.type));
  }),
        self.rank());
}

void unregister_device_memory(PyCommunicator& self, nb::handle array) {
  const Array seen = array_of(array, true, "array");
  check(rondo_unregister_device_memory(self.handle_until_closed(), seen.data), self.rank());
}

std::vector<int> hosts(const PyCommunicator& self) {
  std::vector<int> hosts;
  for (int rank = 0; rank < self.size(); ++rank) {
    hosts.push_back(rondo_host(self.handle(), rank));
  }
  return hosts;
}

std::vector<int> former_ranks(const PyCommunicator& self) {
  std::vector<int> former;
  for (int rank = 0; rank < self.size(); ++rank) {
    former.push_back(rondo_former_rank(self.handle(), rank));
  }
  if (!former.empty() && former.front() < 0) former.clear();
  return former;
}

}  // namespace

void bind_communicator(nb::module_& module) {
  forks();  // counts from here on
  nb::class_<PyWork>(module, "Work")
      .def("wait", &PyWork::wait)
      .def("test", &PyWork::test)
      .def_prop_ro("times", &PyWork::times)
      .def_prop_ro("envelope", &PyWork::envelope);

  nb::class_<PyCommunicator> communicator(module, "Communicator");
  communicator
      .def(
          "__init__",
          [](PyCommunicator* self, int rank, int world_size, std::optional<std::string> rendezvous,
             std::optional<std::string> unique_id, nb::object all_gather,
             std::optional<std::string> name, std::optional<double> stall_timeout,
             std::optional<double> bootstrap_timeout, int channels, int max_channels, int slots,
             size_t slot_bytes, std::optional<std::string> pace, std::optional<std::string> links,
             std::optional<std::string> algorithm, bool reproducible, int device) {
            new (self)
                PyCommunicator(PyCommunicator::Creation{.rank = rank,
                                                        .world_size = world_size,
                                                        .rendezvous = std::move(rendezvous),
                                                        .unique_id = std::move(unique_id),
                                                        .name = std::move(name),
                                                        .pace = std::move(pace),
                                                        .links = std::move(links),
                                                        .algorithm = std::move(algorithm),
                                                        .all_gather = std::move(all_gather),
                                                        .stall_timeout = stall_timeout,
                                                        .bootstrap_timeout = bootstrap_timeout,
                                                        .channels = channels,
                                                        .max_channels = max_channels,
                                                        .slots = slots,
                                                        .slot_bytes = slot_bytes,
                                                        .reproducible = reproducible,
                                                        .device = device});
          },
          nb::arg("rank") = -1, nb::arg("world_size") = -1, nb::kw_only(),
          nb::arg("rendezvous") = nb::none(), nb::arg("unique_id") = nb::none(),
          nb::arg("all_gather") = nb::none(), nb::arg("name") = nb::none(),
          nb::arg("stall_timeout") = nb::none(), nb::arg("bootstrap_timeout") = nb::none(),
          nb::arg("channels") = 0, nb::arg("max_channels") = 0, nb::arg("slots") = 0,
          nb::arg("slot_bytes") = 0, nb::arg("pace") = nb::none(), nb::arg("links") = nb::none(),
          nb::arg("algorithm") = nb::none(), nb::arg("reproducible") = false,
          nb::arg("device") = -1)
      .def_prop_ro("rank", &PyCommunicator::rank)
      .def_prop_ro("size", &PyCommunicator::size)
      .def_prop_ro("hosts", hosts)
      .def_prop_ro("_on_device", &PyCommunicator::on_device)
      .def_prop_ro("_in_group", &PyCommunicator::in_group)
      .def("finish", &PyCommunicator::finish)
      .def("close", &PyCommunicator::close)
      .def("_group_start", &PyCommunicator::group_start)
      .def("_group_end", &PyCommunicator::group_end)
      .def("_group_abandon", &PyCommunicator::group_abandon)
      .def("split", split, nb::arg("color").none(), nb::arg("key") = 0,
           nb::arg("name") = nb::none(), nb::rv_policy::take_ownership)
      .def("duplicate", duplicate, nb::rv_policy::take_ownership)
      .def("shrink", shrink, nb::arg("patience") = nb::none(), nb::rv_policy::take_ownership)
      .def_prop_ro("former_ranks", former_ranks)
      .def("register_device_memory", register_device_memory, nb::arg("array"))
      .def("unregister_device_memory", unregister_device_memory, nb::arg("array"))
      .def(
          "abort",
          [](PyCommunicator& self, const std::string& reason) {
            check(rondo_abort(self.handle_until_closed(), reason.c_str()), self.rank());
          },
          nb::arg("reason"))
      .def("check",
           [](PyCommunicator& self) {
             check(self.note(rondo_status(self.handle_until_closed())), self.rank());
           })
      .def("plan", plan, nb::arg("collective"), nb::arg("count"), nb::arg("dtype") = "float32",
           nb::kw_only(), nb::arg("op") = "sum", nb::arg("library_memory") = false)
      .def("stats", stats)
      .def("flight_record", flight_record);
  bind_collectives(communicator);
  bind_messages(communicator);
}

}  // namespace rondo::python
