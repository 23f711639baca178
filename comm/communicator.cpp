// The public functions: each hands its arguments to the one way that all calls go. The first step of
// that way, run(), is in communicator_impl.cpp.
#include "rondo/communicator.hpp"

#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using engine::Transfer;

namespace {

/// `what`: a Call or a Transfer.
template <class What>
Status run_one(Communicator::Impl& impl, const What& what, const CallOptions& options) {
  return impl.guarded([&] { return impl.submit(what, options); });
}

/// A Work for what `submit`, given its state, begins. Refused: it has ended with the error.
template <class Submit>
Work start_one(Communicator::Impl& impl, const Submit& submit) {
  comm::WorkState state;
  const Status status = impl.guarded([&] {
    state = comm::issued();
    return submit(&state);
  });
  if (state && !status.ok() && !state->ended) state->end(status, base::now_ns());
  return Work(std::move(state));
}

Transfer send_of(const void* buffer, size_t count, DataType type, int peer, int tag) {
  // Only read by the sending end (lanes.hpp).
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(buffer));
  return {.sends = true, .peer = peer, .buffer = bytes, .count = count, .type = type, .tag = tag};
}

Transfer recv_of(void* buffer, size_t count, DataType type, int peer, int tag,
                 Envelope* envelope = nullptr) {
  return {.sends = false,
          .peer = peer,
          .buffer = static_cast<std::byte*>(buffer),
          .count = count,
          .type = type,
          .tag = tag,
          .envelope = envelope};
}

Transfer probe_of(int peer, int tag, bool once, Envelope* envelope) {
  Transfer transfer = recv_of(nullptr, 0, DataType::kUint8, peer, tag, envelope);
  transfer.probes = true;
  transfer.once = once;
  return transfer;
}

}  // namespace

Work Communicator::start(const Call& call, const CallOptions& options) {
  return start_one(*impl_,
                   [&](comm::WorkState* work) { return impl_->submit(call, options, work); });
}

Status Communicator::run(Call call, const InSpan& in, const OutSpan& out,
                         const CallOptions& options) {
  const Status fits = impl_->guarded([&] { return impl_->fit(call, in, out); });
  return fits.ok() ? run(call, options) : impl_->refuse_call(fits);
}
Work Communicator::start(Call call, const InSpan& in, const OutSpan& out,
                         const CallOptions& options) {
  return start_one(*impl_, [&](comm::WorkState* work) {
    const Status fits = impl_->fit(call, in, out);
    return fits.ok() ? impl_->submit(call, options, work) : impl_->refuse_call(fits);
  });
}

Status Communicator::send(const void* buffer, size_t count, DataType type, int peer, int tag,
                          const CallOptions& options) {
  return run_one(*impl_, send_of(buffer, count, type, peer, tag), options);
}
Work Communicator::send_async(const void* buffer, size_t count, DataType type, int peer, int tag,
                              const CallOptions& options) {
  return start_one(*impl_, [&](comm::WorkState* work) {
    return impl_->submit(send_of(buffer, count, type, peer, tag), options, work);
  });
}
Status Communicator::recv(void* buffer, size_t count, DataType type, int peer, int tag,
                          Envelope* envelope, const CallOptions& options) {
  return run_one(*impl_, recv_of(buffer, count, type, peer, tag, envelope), options);
}
Work Communicator::recv_async(void* buffer, size_t count, DataType type, int peer, int tag,
                              const CallOptions& options) {
  return start_one(*impl_, [&](comm::WorkState* work) {
    return impl_->submit(recv_of(buffer, count, type, peer, tag), options, work);
  });
}
Result<Envelope> Communicator::probe(int peer, int tag, const CallOptions& options) {
  Envelope found;
  RONDO_TRY(run_one(*impl_, probe_of(peer, tag, false, &found), options));
  return found;
}
Result<std::optional<Envelope>> Communicator::try_probe(int peer, int tag) {
  Envelope found;
  RONDO_TRY(run_one(*impl_, probe_of(peer, tag, true, &found), {}));
  if (found.source >= 0) return std::optional<Envelope>(found);
  RONDO_TRY(impl_->guarded([&] { return impl_->check_senders(peer); }));
  return std::optional<Envelope>();
}

Status Communicator::group_start() {
  return base::guarded([this] { return impl_->group_start(); });
}
Status Communicator::group_end() {
  return impl_->guarded([this] { return impl_->group_end(); });
}
Status Communicator::group_abandon(const std::string& reason) {
  return base::guarded([&] { return impl_->group_abandon(reason); });
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Result<Communicator> Communicator::create(const Config& config) {
  return base::guarded([&]() -> Result<Communicator> {
    auto impl = RONDO_TRY(Impl::create(config));
    return Communicator(std::move(impl));
  });
}

int Communicator::rank() const { return impl_->rank(); }
int Communicator::size() const { return impl_->size(); }
bool Communicator::is_reproducible() const { return impl_->is_reproducible(); }
int Communicator::device() const { return impl_->device(); }
std::vector<int> Communicator::hosts() const { return impl_->hosts(); }
int Communicator::host_of(int rank) const { return impl_->host_of(rank); }
Status Communicator::status() const {
  return base::guarded([this] { return impl_->status(); });  // any thread: the runner may be busy
}
Status Communicator::finish() {
  return base::guarded([this] { return impl_->finish(); });
}
bool Communicator::is_idle() const { return impl_->is_idle(); }
void Communicator::abort(const std::string& reason) { impl_->abort(reason); }
Stats Communicator::stats() const { return impl_->stats(); }
std::string Communicator::flight_record() const {
  try {
    return impl_->flight_record();
  } catch (...) {
    return "out of memory";  // short: no heap
  }
}
Result<Plan> Communicator::find_plan(Collective collective, size_t count, DataType type,
                                     bool direct, Algorithm algorithm, ReduceOp op) const {
  return base::guarded([&] { return impl_->plan(collective, count, type, direct, algorithm, op); });
}

}  // namespace rondo
