// The collectives and messages of rondo.Communicator: each reads its arrays, compares their sizes
// with what the collective needs, and calls one of the C API's two forms.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <numeric>
#include <tuple>
#include <utility>

#include "python/src/communicator.hpp"
#include "python/src/interrupt.hpp"
#include "rondo/types.hpp"

namespace rondo::python {
namespace {

using Counts = std::vector<size_t>;

/// Keyword arguments that every call has: async_op, algorithm, timeout (seconds), factor, stream.
struct CallSettings {
  rondo_call_options call;
  bool async_op = false;

  explicit CallSettings(const nb::kwargs& given) {
    rondo_call_options_init(&call, sizeof call);
    for (const auto& [key, value] : given) set(nb::cast<std::string>(key), value);
  }

 private:
  void set(const std::string& key, nb::handle value) {
    if (key == "async_op") {
      async_op = nb::cast<bool>(value);
    } else if (value.is_none()) {
      // the default
    } else if (key == "algorithm") {
      const auto text = nb::cast<std::string>(value);
      const auto algorithm = parse<Algorithm>(text, kAlgorithmNames);
      if (!algorithm) throw nb::value_error(("no algorithm \"" + text + "\"").c_str());
      call.algorithm = static_cast<rondo_algorithm>(*algorithm);
    } else if (key == "timeout") {
      call.timeout_ms = milliseconds(nb::cast<double>(value));
    } else if (key == "factor") {
      call.factor = nb::cast<double>(value);
    } else if (key == "stream") {
      call.stream = reinterpret_cast<void*>(nb::cast<uintptr_t>(value));
    } else {
      throw nb::type_error(("no argument \"" + key + "\"").c_str());
    }
  }
};

rondo_reduce_op op_named(const std::string& text) {
  const auto op = parse<ReduceOp>(text, kReduceOpNames);
  if (op) return static_cast<rondo_reduce_op>(*op);
  const std::string_view why = why_absent(text);
  throw nb::value_error(
      ("no operator \"" + text + "\"" + (why.empty() ? "" : ": ") + std::string(why)).c_str());
}

rondo_data_type type_of(const Array& array) { return static_cast<rondo_data_type>(array.type); }

/// A new array like x whose first dimension is `times` / `parts` as long; x must divide so. 0: of x's
/// shape.
nb::object like(const Array& x, size_t times, size_t parts) {
  return nb::module_::import_("rondo._like").attr("like")(x.object, times, parts);
}

/// The array that an operation writes: y, or a new one.
Array written(nb::handle y, const Array& x, size_t times = 0, size_t parts = 0) {
  return y.is_none() ? array_of(like(x, times, parts), true, "y") : array_of(y, true, "y");
}

void expect(const Array& array, const char* name, size_t count, const char* why) {
  if (array.count == count) return;
  throw nb::value_error((std::string(name) + " has " + std::to_string(array.count) +
                         " elements, it needs " + std::to_string(count) + ": " + why)
                            .c_str());
}

void expect_one_type(const Array& x, const Array& y) {
  if (x.type == y.type) return;
  throw nb::value_error(
      ("x holds " + std::string(name(x.type)) + ", y " + std::string(name(y.type))).c_str());
}

size_t divided(const Array& x, size_t ranks) {
  if (x.count % ranks == 0) return x.count / ranks;
  throw nb::value_error(("x has " + std::to_string(x.count) + " elements, which " +
                         std::to_string(ranks) + " ranks cannot share equally")
                            .c_str());
}

void expect_root(int root, const PyCommunicator& self) {
  if (root >= 0 && root < self.size()) return;
  throw nb::value_error(
      ("root " + std::to_string(root) + " is not a rank of " + std::to_string(self.size()))
          .c_str());
}

/// Calls one of the two forms with these arguments. Returns `result`, or a Work that yields it.
template <class Blocking, class Asynchronous, class Arguments>
nb::object run(nb::handle self_object, const CallSettings& options, std::vector<Array> arrays,
               nb::object result, Blocking* blocking, Asynchronous* asynchronous,
               const Arguments& arguments) {
  auto& self = nb::cast<PyCommunicator&>(self_object);
  rondo_communicator* const handle = self.handle();
  rondo_code code = RONDO_OK;
  if (options.async_op) {
    rondo_work* work = nullptr;
    {
      const nb::gil_scoped_release released;
      code = std::apply(
          [&](auto... each) { return asynchronous(handle, each..., &options.call, &work); },
          arguments);
    }
    check(code, self.rank());
    return nb::cast(PyWork(nb::borrow(self_object), work, std::move(arrays), std::move(result)));
  }
  {
    const Interruptible interruptible(handle);
    const nb::gil_scoped_release released;
    code = std::apply([&](auto... each) { return blocking(handle, each..., &options.call); },
                      arguments);
  }
  check(code, self.rank());
  if (self.in_group()) self.keep(nullptr, std::move(arrays));
  return result;
}

nb::object all_reduce(nb::handle self, nb::handle x, nb::handle y, const std::string& op,
                      const nb::kwargs& options) {
  const Array in = array_of(x, false, "x"), out = written(y, in);
  expect_one_type(in, out);
  expect(out, "y", in.count, "as many as x");
  return run(self, CallSettings(options), {in, out}, out.object, rondo_all_reduce,
             rondo_all_reduce_async,
             std::make_tuple(in.data, out.data, in.count, type_of(in), op_named(op)));
}

nb::object reduce_scatter(nb::handle self, nb::handle x, nb::handle y, const std::string& op,
                          const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  const Array in = array_of(x, false, "x");
  const size_t count = divided(in, ranks);
  const Array out = written(y, in, 1, ranks);
  expect_one_type(in, out);
  expect(out, "y", count, "x's, divided by the ranks");
  return run(self, CallSettings(options), {in, out}, out.object, rondo_reduce_scatter,
             rondo_reduce_scatter_async,
             std::make_tuple(in.data, out.data, count, type_of(in), op_named(op)));
}

nb::object all_gather(nb::handle self, nb::handle x, nb::handle y, const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  const Array in = array_of(x, false, "x"), out = written(y, in, ranks, 1);
  expect_one_type(in, out);
  expect(out, "y", in.count * ranks, "x's, times the ranks");
  return run(self, CallSettings(options), {in, out}, out.object, rondo_all_gather,
             rondo_all_gather_async, std::make_tuple(in.data, out.data, in.count, type_of(in)));
}

nb::object all_to_all(nb::handle self, nb::handle x, nb::handle y, const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  const Array in = array_of(x, false, "x"), out = written(y, in);
  const size_t count = divided(in, ranks);
  expect_one_type(in, out);
  expect(out, "y", in.count, "as many as x");
  return run(self, CallSettings(options), {in, out}, out.object, rondo_all_to_all,
             rondo_all_to_all_async, std::make_tuple(in.data, out.data, count, type_of(in)));
}

nb::object broadcast(nb::handle self, nb::handle x, int root, const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  const Array both = array_of(x, communicator.rank() != root, "x");
  return run(self, CallSettings(options), {both}, both.object, rondo_broadcast,
             rondo_broadcast_async,
             std::make_tuple(both.data, both.data, both.count, type_of(both), root));
}

nb::object reduce(nb::handle self, nb::handle x, nb::handle y, int root, const std::string& op,
                  const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  const Array in = array_of(x, false, "x");
  Array out;
  if (communicator.rank() == root) {
    out = written(y, in);
    expect_one_type(in, out);
    expect(out, "y", in.count, "as many as x");
  }
  return run(self, CallSettings(options), {in, out},
             out.object.is_valid() ? out.object : nb::none(), rondo_reduce, rondo_reduce_async,
             std::make_tuple(in.data, out.data, in.count, type_of(in), root, op_named(op)));
}

nb::object gather(nb::handle self, nb::handle x, nb::handle y, int root,
                  const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  const auto ranks = static_cast<size_t>(communicator.size());
  const Array in = array_of(x, false, "x");
  Array out;
  if (communicator.rank() == root) {
    out = written(y, in, ranks, 1);
    expect_one_type(in, out);
    expect(out, "y", in.count * ranks, "x's, times the ranks");
  }
  return run(self, CallSettings(options), {in, out},
             out.object.is_valid() ? out.object : nb::none(), rondo_gather, rondo_gather_async,
             std::make_tuple(in.data, out.data, in.count, type_of(in), root));
}

nb::object scatter(nb::handle self, nb::handle x, nb::handle y, int root,
                   const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  const auto ranks = static_cast<size_t>(communicator.size());
  Array in;
  if (communicator.rank() == root) in = array_of(x, false, "x");
  if (!in.object.is_valid() && y.is_none())
    throw nb::type_error("y is needed on ranks other than the root");
  const Array out = written(y, in, 1, ranks);
  if (in.object.is_valid()) {
    expect_one_type(in, out);
    expect(in, "x", out.count * ranks, "y's, times the ranks");
  }
  return run(self, CallSettings(options), {in, out}, out.object, rondo_scatter, rondo_scatter_async,
             std::make_tuple(in.data, out.data, out.count, type_of(out), root));
}

void expect_counts(const Counts& counts, const std::optional<Counts>& offsets, size_t ranks) {
  if (counts.size() != ranks || (offsets && offsets->size() != ranks)) {
    throw nb::value_error(
        ("counts and offsets need an entry for each of " + std::to_string(ranks) + " ranks")
            .c_str());
  }
}

/// The elements that an array needs at least to hold such blocks.
size_t extent(const Counts& counts, const std::optional<Counts>& offsets) {
  if (!offsets) return std::accumulate(counts.begin(), counts.end(), size_t{0});
  size_t end = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] > 0) end = std::max(end, (*offsets)[r] + counts[r]);
  }
  return end;
}

void expect_extent(const Array& array, const char* name, const Counts& counts,
                   const std::optional<Counts>& offsets) {
  if (array.count >= extent(counts, offsets)) return;
  throw nb::value_error((std::string(name) + " has " + std::to_string(array.count) +
                         " elements, its blocks need " + std::to_string(extent(counts, offsets)))
                            .c_str());
}

const size_t* data_of(const std::optional<Counts>& offsets) {
  return offsets ? offsets->data() : nullptr;
}

nb::object all_gather_v(nb::handle self, nb::handle x, nb::handle y, const Counts& counts,
                        const std::optional<Counts>& offsets, const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  const Array in = array_of(x, false, "x"), out = array_of(y, true, "y");
  expect_counts(counts, offsets, static_cast<size_t>(communicator.size()));
  expect_one_type(in, out);
  expect(in, "x", counts[static_cast<size_t>(communicator.rank())], "this rank's count");
  expect_extent(out, "y", counts, offsets);
  return run(self, CallSettings(options), {in, out}, out.object, rondo_all_gather_v,
             rondo_all_gather_v_async,
             std::make_tuple(in.data, out.data, counts.data(), data_of(offsets), type_of(in)));
}

nb::object reduce_scatter_v(nb::handle self, nb::handle x, nb::handle y, const Counts& counts,
                            const std::optional<Counts>& offsets, const std::string& op,
                            const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  const Array in = array_of(x, false, "x"), out = array_of(y, true, "y");
  expect_counts(counts, offsets, static_cast<size_t>(communicator.size()));
  expect_one_type(in, out);
  expect_extent(in, "x", counts, offsets);
  expect(out, "y", counts[static_cast<size_t>(communicator.rank())], "this rank's count");
  return run(self, CallSettings(options), {in, out}, out.object, rondo_reduce_scatter_v,
             rondo_reduce_scatter_v_async,
             std::make_tuple(in.data, out.data, counts.data(), data_of(offsets), type_of(in),
                             op_named(op)));
}

nb::object all_to_all_v(nb::handle self, nb::handle x, const Counts& x_counts, nb::handle y,
                        const Counts& y_counts, const std::optional<Counts>& x_offsets,
                        const std::optional<Counts>& y_offsets, const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  const Array in = array_of(x, false, "x"), out = array_of(y, true, "y");
  expect_counts(x_counts, x_offsets, ranks);
  expect_counts(y_counts, y_offsets, ranks);
  expect_one_type(in, out);
  expect_extent(in, "x", x_counts, x_offsets);
  expect_extent(out, "y", y_counts, y_offsets);
  return run(self, CallSettings(options), {in, out}, out.object, rondo_all_to_all_v,
             rondo_all_to_all_v_async,
             std::make_tuple(in.data, x_counts.data(), data_of(x_offsets), out.data,
                             y_counts.data(), data_of(y_offsets), type_of(in)));
}

nb::object send(nb::handle self, nb::handle x, int peer, const nb::kwargs& options) {
  const Array in = array_of(x, false, "x");
  return run(self, CallSettings(options), {in}, nb::none(), rondo_send, rondo_send_async,
             std::make_tuple(in.data, in.count, type_of(in), peer));
}

nb::object recv(nb::handle self, nb::handle y, int peer, const nb::kwargs& options) {
  const Array out = array_of(y, true, "y");
  return run(self, CallSettings(options), {out}, out.object, rondo_recv, rondo_recv_async,
             std::make_tuple(out.data, out.count, type_of(out), peer));
}

nb::object barrier(nb::handle self, const nb::kwargs& options) {
  return run(self, CallSettings(options), {}, nb::none(), rondo_barrier, rondo_barrier_async,
             std::make_tuple());
}

}  // namespace

void bind_collectives(nb::class_<PyCommunicator>& c) {
  using nb::arg;
  const auto none = [](const char* name) { return arg(name).none() = nb::none(); };
  c.def("all_reduce", all_reduce, arg("x"), none("y"), arg("op") = "sum", arg("options"));
  c.def("reduce_scatter", reduce_scatter, arg("x"), none("y"), arg("op") = "sum", arg("options"));
  c.def("all_gather", all_gather, arg("x"), none("y"), arg("options"));
  c.def("all_to_all", all_to_all, arg("x"), none("y"), arg("options"));
  c.def("broadcast", broadcast, arg("x"), arg("root") = 0, arg("options"));
  c.def("reduce", reduce, arg("x"), none("y"), arg("root") = 0, arg("op") = "sum", arg("options"));
  c.def("gather", gather, arg("x"), none("y"), arg("root") = 0, arg("options"));
  c.def("scatter", scatter, arg("x").none(), none("y"), arg("root") = 0, arg("options"));
  c.def("all_gather_v", all_gather_v, arg("x"), arg("y"), arg("counts"), none("offsets"),
        arg("options"));
  c.def("reduce_scatter_v", reduce_scatter_v, arg("x"), arg("y"), arg("counts"), none("offsets"),
        arg("op") = "sum", arg("options"));
  c.def("all_to_all_v", all_to_all_v, arg("x"), arg("x_counts"), arg("y"), arg("y_counts"),
        none("x_offsets"), none("y_offsets"), arg("options"));
  c.def("send", send, arg("x"), arg("peer"), arg("options"));
  c.def("recv", recv, arg("y"), arg("peer"), arg("options"));
  c.def("barrier", barrier, arg("options"));
}

}  // namespace rondo::python
