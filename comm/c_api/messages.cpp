// The messages of rondo.h and groups, in one statement each where there are no envelopes.
#include <utility>
#include <vector>

#include "comm/c_api/shim.hpp"

namespace rondo::c_api {
namespace {

void write_envelope(const Envelope& e, rondo_envelope* into, size_t size) {
  if (into == nullptr) return;
  write_struct<rondo_envelope>({e.source, e.tag, e.count, static_cast<rondo_data_type>(e.type), 0},
                               into, size);
}

void keep_promises(rondo_communicator& handle) {
  for (const auto& [envelope, into, size] : handle.promised) write_envelope(envelope, into, size);
  handle.promised.clear();
}

void leave_group(rondo_communicator& handle) {
  if (handle.groups > 0 && --handle.groups == 0) keep_promises(handle);
}

}  // namespace
}  // namespace rondo::c_api

using namespace rondo;  // the functions are C's, all that they use is rondo's
using namespace rondo::c_api;

rondo_code rondo_send(rondo_communicator* communicator, const void* buffer, size_t count,
                      rondo_data_type type, int32_t peer, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.send(buffer, count, a.type, peer, a.options);
  });
}

rondo_code rondo_recv(rondo_communicator* communicator, void* buffer, size_t count,
                      rondo_data_type type, int32_t peer, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.recv(buffer, count, a.type, peer, a.options);
  });
}

rondo_code rondo_send_tagged(rondo_communicator* communicator, const void* buffer, size_t count,
                             rondo_data_type type, int32_t peer, int32_t tag,
                             const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.send(buffer, count, a.type, peer, tag, a.options);
  });
}

rondo_code rondo_recv_tagged(rondo_communicator* communicator, void* buffer, size_t count,
                             rondo_data_type type, int32_t peer, int32_t tag,
                             rondo_envelope* envelope, size_t size,
                             const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    if (envelope == nullptr) return c.recv(buffer, count, a.type, peer, tag, nullptr, a.options);
    auto& promised = communicator->promised;
    promised.push_back({.envelope = {}, .into = envelope, .size = size});
    const Status status =
        c.recv(buffer, count, a.type, peer, tag, &promised.back().envelope, a.options);
    if (communicator->groups == 0) keep_promises(*communicator);
    return status;
  });
}

rondo_code rondo_probe(rondo_communicator* communicator, int32_t peer, int32_t tag,
                       rondo_envelope* envelope, size_t size, const rondo_call_options* options) {
  return run({communicator, options}, [&](Communicator& c, const Arguments& a) -> Status {
    RONDO_TRY(check_pointer(envelope, "the place for the envelope"));
    auto found = c.probe(peer, tag, a.options);
    write_envelope(found.ok() ? *found : Envelope(), envelope, size);
    return found.status();
  });
}

rondo_code rondo_try_probe(rondo_communicator* communicator, int32_t peer, int32_t tag, int* found,
                           rondo_envelope* envelope, size_t size) {
  return run({communicator, nullptr}, [&](Communicator& c, const Arguments&) -> Status {
    RONDO_TRY(check_pointer(found, "the place for the answer"));
    *found = 0;
    auto message = c.try_probe(peer, tag);
    const bool is_there = message.ok() && message->has_value();
    write_envelope(is_there ? **message : Envelope(), envelope, size);
    *found = is_there ? 1 : 0;
    return message.status();
  });
}

rondo_code rondo_group_start(rondo_communicator* communicator) {
  return run({communicator, nullptr}, [&](Communicator& c, const Arguments&) {
    ++communicator->groups;
    return c.group_start();
  });
}

rondo_code rondo_group_end(rondo_communicator* communicator) {
  return run({communicator, nullptr}, [&](Communicator& c, const Arguments&) {
    const Status status = c.group_end();
    leave_group(*communicator);
    return status;
  });
}

rondo_code rondo_group_abandon(rondo_communicator* communicator, const char* reason) {
  return run({communicator, nullptr}, [&](Communicator& c, const Arguments&) {
    const Status status = c.group_abandon(reason ? reason : "no reason given");
    leave_group(*communicator);
    return status;
  });
}

// ---- asynchronous

rondo_code rondo_send_async(rondo_communicator* communicator, const void* buffer, size_t count,
                            rondo_data_type type, int32_t peer, const rondo_call_options* options,
                            rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.send_async(buffer, count, a.type, peer, a.options);
  });
}

rondo_code rondo_recv_async(rondo_communicator* communicator, void* buffer, size_t count,
                            rondo_data_type type, int32_t peer, const rondo_call_options* options,
                            rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.recv_async(buffer, count, a.type, peer, a.options);
  });
}

rondo_code rondo_send_tagged_async(rondo_communicator* communicator, const void* buffer,
                                   size_t count, rondo_data_type type, int32_t peer, int32_t tag,
                                   const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.send_async(buffer, count, a.type, peer, tag, a.options);
  });
}

rondo_code rondo_recv_tagged_async(rondo_communicator* communicator, void* buffer, size_t count,
                                   rondo_data_type type, int32_t peer, int32_t tag,
                                   const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.recv_async(buffer, count, a.type, peer, tag, a.options);
  });
}

rondo_code rondo_get_work_envelope(const rondo_work* work, rondo_envelope* envelope, size_t size) {
  return guarded({{work, "the work"}, {envelope, "the place for the envelope"}}, [&]() -> Status {
    write_envelope(work->work.envelope(), envelope, size);
    return {};
  });
}

rondo_code rondo_work_wait_all(rondo_work* const* works, size_t count) {
  return guarded([&]() -> Status {
    if (count > 0) RONDO_TRY(check_pointer(static_cast<const void*>(works), "the list of works"));
    Status outcome;
    for (size_t i = 0; i < count; ++i) {
      Status status = works[i] != nullptr ? works[i]->work.wait() : Status();
      if (outcome.ok()) outcome = std::move(status);
    }
    return outcome;
  });
}

rondo_code rondo_work_wait_any(rondo_work* const* works, size_t count, size_t* index) {
  return guarded({{index, "the place for the index"}}, [&]() -> Status {
    *index = count;
    if (count > 0) RONDO_TRY(check_pointer(static_cast<const void*>(works), "the list of works"));
    std::vector<Work> there;
    std::vector<size_t> at;
    for (size_t i = 0; i < count; ++i) {
      if (works[i] == nullptr) continue;
      there.push_back(works[i]->work);
      at.push_back(i);
    }
    if (there.empty()) return {};
    const size_t found = rondo::wait_any(there);
    *index = at[found];
    return there[found].wait();  // of an open group's: why there is nothing to wait for
  });
}
