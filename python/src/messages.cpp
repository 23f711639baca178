// The messages of rondo.Communicator: send, recv and probe, with tags and without.
#include <nanobind/stl/optional.h>

#include "python/src/call.hpp"
#include "python/src/communicator.hpp"
#include "rondo/types.hpp"

namespace rondo::python {
namespace {

nb::object send(nb::handle self, nb::handle x, int peer, std::optional<int> tag,
                const nb::kwargs& options) {
  Array in = array_of(x, false, "x");
  return run(self, CallSettings(options), {&in}, nb::none(), rondo_send_tagged,
             rondo_send_tagged_async,
             std::make_tuple(in.data, in.count, type_of(in), peer, tag.value_or(0)));
}

/// Without a tag the count must be the message's; with one y may have room for more.
nb::object recv(nb::handle self, nb::handle y, int peer, std::optional<int> tag,
                const nb::kwargs& options) {
  Array out = array_of(y, true, "y");
  const CallSettings settings(options);
  if (!tag) {
    return run(self, settings, {&out}, out.object, rondo_recv, rondo_recv_async,
               std::make_tuple(out.data, out.count, type_of(out), peer));
  }
  const auto blocking = [](rondo_communicator* communicator, void* buffer, size_t count,
                           rondo_data_type type, int32_t from, int32_t wanted,
                           const rondo_call_options* call) {
    return rondo_recv_tagged(communicator, buffer, count, type, from, wanted, nullptr, 0, call);
  };
  return run(self, settings, {&out}, out.object, +blocking, rondo_recv_tagged_async,
             std::make_tuple(out.data, out.count, type_of(out), peer, *tag));
}

nb::object probe(PyCommunicator& self, int peer, int tag, const nb::kwargs& options) {
  const CallSettings settings(options);
  rondo_envelope envelope;
  const int rank = self.rank();
  check(self.run_interruptible([&](rondo_communicator* handle) {
    return rondo_probe(handle, peer, tag, &envelope, sizeof envelope, &settings.call);
  }),
        rank);
  return envelope_of(envelope);
}

nb::object try_probe(const PyCommunicator& self, int peer, int tag) {
  rondo_envelope envelope;
  int found = 0;
  check(rondo_try_probe(self.handle(), peer, tag, &found, &envelope, sizeof envelope), self.rank());
  return found != 0 ? envelope_of(envelope) : nb::none();
}

}  // namespace

nb::object envelope_of(const rondo_envelope& envelope) {
  if (envelope.source < 0) return nb::none();
  return nb::module_::import_("rondo._envelope")
      .attr("Envelope")(envelope.source, envelope.tag, envelope.count,
                        std::string(name(static_cast<DataType>(envelope.type))));
}

void bind_messages(nb::class_<PyCommunicator>& c) {
  using nb::arg;
  c.def("send", send, arg("x"), arg("peer"), arg("tag").none() = nb::none(), arg("options"));
  c.def("recv", recv, arg("y"), arg("peer"), arg("tag").none() = nb::none(), arg("options"));
  c.def("probe", probe, arg("peer") = kAnySource, arg("tag") = kAnyTag, arg("options"));
  c.def("try_probe", try_probe, arg("peer") = kAnySource, arg("tag") = kAnyTag);
}

}  // namespace rondo::python
