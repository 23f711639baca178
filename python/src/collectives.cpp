// The collectives of rondo.Communicator: each reads its arrays, compares their sizes
// with what the collective needs, and calls one of the C API's two forms.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/call.hpp"
#include "python/src/communicator.hpp"
#include "rondo/types.hpp"

namespace rondo::python {
namespace {

using Counts = std::vector<size_t>;

rondo_reduce_op op_named(const std::string& text) {
  const auto op = internal::parse<ReduceOp>(text, kReduceOpNames);
  if (op) return static_cast<rondo_reduce_op>(*op);
  const std::string_view why = internal::why_absent(text);
  throw nb::value_error(
      ("no operator \"" + text + "\"" + (why.empty() ? "" : ": ") + std::string(why)).c_str());
}

/// A new array like x whose first dimension is `times` / `parts` as long; x must divide so. 0: of x's
/// shape.
nb::object like(const Array& x, size_t times, size_t parts) {
  // Never released: the interpreter ends before this library. Set with the GIL; the import may give
  // it to another thread, so that a guarded initialisation would be waited for by one that has it.
  static PyObject* function = nullptr;
  if (function == nullptr) {
    function = nb::object(nb::module_::import_("rondo._like").attr("like")).release().ptr();
  }
  return nb::handle(function)(x.object, times, parts);
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

nb::object all_reduce(nb::handle self, nb::handle x, nb::handle y, const std::string& op,
                      const nb::kwargs& options) {
  Array in = array_of(x, false, "x"), out = written(y, in);
  expect_one_type(in, out);
  expect(out, "y", in.count, "as many as x");
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_all_reduce,
             rondo_all_reduce_async,
             std::make_tuple(in.data, out.data, in.count, type_of(in), op_named(op)));
}

nb::object reduce_scatter(nb::handle self, nb::handle x, nb::handle y, const std::string& op,
                          const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  Array in = array_of(x, false, "x");
  const size_t count = divided(in, ranks);
  Array out = written(y, in, 1, ranks);
  expect_one_type(in, out);
  expect(out, "y", count, "x's, divided by the ranks");
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_reduce_scatter,
             rondo_reduce_scatter_async,
             std::make_tuple(in.data, out.data, count, type_of(in), op_named(op)));
}

nb::object all_gather(nb::handle self, nb::handle x, nb::handle y, const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  Array in = array_of(x, false, "x"), out = written(y, in, ranks, 1);
  expect_one_type(in, out);
  expect(out, "y", in.count * ranks, "x's, times the ranks");
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_all_gather,
             rondo_all_gather_async, std::make_tuple(in.data, out.data, in.count, type_of(in)));
}

nb::object all_to_all(nb::handle self, nb::handle x, nb::handle y, const nb::kwargs& options) {
  const auto ranks = static_cast<size_t>(nb::cast<PyCommunicator&>(self).size());
  Array in = array_of(x, false, "x"), out = written(y, in);
  const size_t count = divided(in, ranks);
  expect_one_type(in, out);
  expect(out, "y", in.count, "as many as x");
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_all_to_all,
             rondo_all_to_all_async, std::make_tuple(in.data, out.data, count, type_of(in)));
}

nb::object broadcast(nb::handle self, nb::handle x, nb::handle y, int root,
                     const nb::kwargs& options) {
  expect_root(root, nb::cast<PyCommunicator&>(self));
  Array in = array_of(x, false, "x"), out = written(y, in);
  expect_one_type(in, out);
  expect(out, "y", in.count, "as many as x");
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_broadcast,
             rondo_broadcast_async,
             std::make_tuple(in.data, out.data, in.count, type_of(in), root));
}

nb::object reduce(nb::handle self, nb::handle x, nb::handle y, const std::string& op, int root,
                  const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  Array in = array_of(x, false, "x");
  Array out;
  if (!y.is_none()) array_of(y, true, "y");  // a mistake is one on every rank
  if (communicator.rank() == root) {
    out = written(y, in);
    expect_one_type(in, out);
    expect(out, "y", in.count, "as many as x");
  }
  return run(self, CallSettings(options), {&in, &out},
             out.object.is_valid() ? out.object : nb::none(), rondo_reduce, rondo_reduce_async,
             std::make_tuple(in.data, out.data, in.count, type_of(in), op_named(op), root));
}

nb::object gather(nb::handle self, nb::handle x, nb::handle y, int root,
                  const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  const auto ranks = static_cast<size_t>(communicator.size());
  Array in = array_of(x, false, "x");
  Array out;
  if (!y.is_none()) array_of(y, true, "y");  // a mistake is one on every rank
  if (communicator.rank() == root) {
    out = written(y, in, ranks, 1);
    expect_one_type(in, out);
    expect(out, "y", in.count * ranks, "x's, times the ranks");
  }
  return run(self, CallSettings(options), {&in, &out},
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
  Array out = written(y, in, 1, ranks);
  if (in.object.is_valid()) {
    expect_one_type(in, out);
    expect(in, "x", out.count * ranks, "y's, times the ranks");
  }
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_scatter,
             rondo_scatter_async,
             std::make_tuple(in.data, out.data, out.count, type_of(out), root));
}

/// A number of elements for each rank, from any iterable of integers.
Counts counts_of(nb::handle given, const std::string& name, size_t ranks) {
  Counts counts;
  for (const nb::handle each : nb::iter(given)) {
    const Py_ssize_t count = PyNumber_AsSsize_t(each.ptr(), PyExc_OverflowError);
    if (count == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (count < 0) {
      throw nb::value_error((name + "[" + std::to_string(counts.size()) + "] is " +
                             std::to_string(count) + ": it must not be negative")
                                .c_str());
    }
    counts.push_back(static_cast<size_t>(count));
  }
  if (counts.size() == ranks) return counts;
  throw nb::value_error((name + " has " + std::to_string(counts.size()) +
                         " entries, it needs one for each of " + std::to_string(ranks) + " ranks")
                            .c_str());
}

/// The blocks of an array, one for each rank; without offsets they follow each other.
struct RankBlocks {
  Counts counts;
  std::optional<Counts> offsets;

  /// `prefix`: of both arguments' names.
  RankBlocks(nb::handle counts_given, nb::handle offsets_given, const PyCommunicator& self,
             const std::string& prefix = "")
      : counts(counts_of(counts_given, prefix + "counts", static_cast<size_t>(self.size()))) {
    if (!offsets_given.is_none()) {
      offsets = counts_of(offsets_given, prefix + "offsets", counts.size());
    }
  }
  size_t own(const PyCommunicator& self) const { return counts[static_cast<size_t>(self.rank())]; }
  const size_t* offsets_or_null() const { return offsets ? offsets->data() : nullptr; }

  /// The elements that an array needs at least to hold them.
  size_t extent() const {
    size_t end = 0;
    for (size_t r = 0; r < counts.size(); ++r) {
      size_t block_end = 0;
      if (__builtin_add_overflow(offsets ? (*offsets)[r] : end, counts[r], &block_end)) {
        return std::numeric_limits<size_t>::max();
      }
      if (counts[r] > 0) end = std::max(end, block_end);
    }
    return end;
  }
};

void expect_extent(const Array& array, const char* name, const RankBlocks& blocks) {
  if (array.count >= blocks.extent()) return;
  throw nb::value_error((std::string(name) + " has " + std::to_string(array.count) +
                         " elements, its blocks need " + std::to_string(blocks.extent()))
                            .c_str());
}

nb::object all_gather_v(nb::handle self, nb::handle x, nb::handle y, nb::handle counts,
                        nb::handle offsets, const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  Array in = array_of(x, false, "x"), out = array_of(y, true, "y");
  const RankBlocks blocks(counts, offsets, communicator);
  expect_one_type(in, out);
  expect(in, "x", blocks.own(communicator), "this rank's count");
  expect_extent(out, "y", blocks);
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_all_gather_v,
             rondo_all_gather_v_async,
             std::make_tuple(in.data, out.data, blocks.counts.data(), blocks.offsets_or_null(),
                             type_of(in)));
}

nb::object reduce_scatter_v(nb::handle self, nb::handle x, nb::handle y, nb::handle counts,
                            nb::handle offsets, const std::string& op, const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  Array in = array_of(x, false, "x"), out = array_of(y, true, "y");
  const RankBlocks blocks(counts, offsets, communicator);
  expect_one_type(in, out);
  expect_extent(in, "x", blocks);
  expect(out, "y", blocks.own(communicator), "this rank's count");
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_reduce_scatter_v,
             rondo_reduce_scatter_v_async,
             std::make_tuple(in.data, out.data, blocks.counts.data(), blocks.offsets_or_null(),
                             type_of(in), op_named(op)));
}

nb::object all_to_all_v(nb::handle self, nb::handle x, nb::handle x_counts, nb::handle y,
                        nb::handle y_counts, nb::handle x_offsets, nb::handle y_offsets,
                        const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  Array in = array_of(x, false, "x"), out = array_of(y, true, "y");
  const RankBlocks x_blocks(x_counts, x_offsets, communicator, "x_");
  const RankBlocks y_blocks(y_counts, y_offsets, communicator, "y_");
  expect_one_type(in, out);
  expect_extent(in, "x", x_blocks);
  expect_extent(out, "y", y_blocks);
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_all_to_all_v,
             rondo_all_to_all_v_async,
             std::make_tuple(in.data, x_blocks.counts.data(), x_blocks.offsets_or_null(), out.data,
                             y_blocks.counts.data(), y_blocks.offsets_or_null(), type_of(in)));
}

nb::object gather_v(nb::handle self, nb::handle x, nb::handle y, nb::handle counts,
                    nb::handle offsets, int root, const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  Array in = array_of(x, false, "x");
  const RankBlocks blocks(counts, offsets, communicator);
  expect(in, "x", blocks.own(communicator), "this rank's count");
  Array out;
  if (communicator.rank() == root) {
    out = array_of(y, true, "y");
    expect_one_type(in, out);
    expect_extent(out, "y", blocks);
  }
  return run(self, CallSettings(options), {&in, &out},
             out.object.is_valid() ? out.object : nb::none(), rondo_gather_v, rondo_gather_v_async,
             std::make_tuple(in.data, out.data, blocks.counts.data(), blocks.offsets_or_null(),
                             type_of(in), root));
}

nb::object scatter_v(nb::handle self, nb::handle x, nb::handle y, nb::handle counts,
                     nb::handle offsets, int root, const nb::kwargs& options) {
  const auto& communicator = nb::cast<PyCommunicator&>(self);
  expect_root(root, communicator);
  Array out = array_of(y, true, "y");
  const RankBlocks blocks(counts, offsets, communicator);
  expect(out, "y", blocks.own(communicator), "this rank's count");
  Array in;
  if (communicator.rank() == root) {
    in = array_of(x, false, "x");
    expect_one_type(in, out);
    expect_extent(in, "x", blocks);
  }
  return run(self, CallSettings(options), {&in, &out}, out.object, rondo_scatter_v,
             rondo_scatter_v_async,
             std::make_tuple(in.data, out.data, blocks.counts.data(), blocks.offsets_or_null(),
                             type_of(out), root));
}

template <auto Blocking, auto Asynchronous>
nb::object scan(nb::handle self, nb::handle x, nb::handle y, const std::string& op,
                const nb::kwargs& options) {
  Array in = array_of(x, false, "x"), out = written(y, in);
  expect_one_type(in, out);
  expect(out, "y", in.count, "as many as x");
  return run(self, CallSettings(options), {&in, &out}, out.object, Blocking, Asynchronous,
             std::make_tuple(in.data, out.data, in.count, type_of(in), op_named(op)));
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
  c.def("broadcast", broadcast, arg("x"), none("y"), arg("root") = 0, arg("options"));
  c.def("reduce", reduce, arg("x"), none("y"), arg("op") = "sum", arg("root") = 0, arg("options"));
  c.def("gather", gather, arg("x"), none("y"), arg("root") = 0, arg("options"));
  c.def("scatter", scatter, arg("x").none(), none("y"), arg("root") = 0, arg("options"));
  c.def("all_gather_v", all_gather_v, arg("x"), arg("y"), arg("counts"), none("offsets"),
        arg("options"));
  c.def("reduce_scatter_v", reduce_scatter_v, arg("x"), arg("y"), arg("counts"), none("offsets"),
        arg("op") = "sum", arg("options"));
  c.def("all_to_all_v", all_to_all_v, arg("x"), arg("x_counts"), arg("y"), arg("y_counts"),
        none("x_offsets"), none("y_offsets"), arg("options"));
  c.def("gather_v", gather_v, arg("x"), arg("y").none(), arg("counts"), none("offsets"),
        arg("root") = 0, arg("options"));
  c.def("scatter_v", scatter_v, arg("x").none(), arg("y"), arg("counts"), none("offsets"),
        arg("root") = 0, arg("options"));
  c.def("inclusive_scan", scan<rondo_inclusive_scan, rondo_inclusive_scan_async>, arg("x"),
        none("y"), arg("op") = "sum", arg("options"));
  c.def("exclusive_scan", scan<rondo_exclusive_scan, rondo_exclusive_scan_async>, arg("x"),
        none("y"), arg("op") = "sum", arg("options"));
  c.def("barrier", barrier, arg("options"));
}

}  // namespace rondo::python
