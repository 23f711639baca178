// The table of public calls: each makes its request, and hands it to the one way that all calls go
// (communicator_impl.cpp).
#include "rondo/communicator.hpp"

#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using comm::Request;
using comm::VaryingRequest;
using engine::Transfer;
using C = Collective;

namespace {

template <auto make, class... Arguments>
Status run(Communicator::Impl& impl, const CallOptions& options, const Arguments&... arguments) {
  return impl.guarded([&] { return impl.submit(make(arguments...), options); });
}

template <auto make, class... Arguments>
Work start(Communicator::Impl& impl, const CallOptions& options, const Arguments&... arguments) {
  comm::WorkState state;
  const Status status = impl.guarded([&] {
    state = comm::issued();
    return impl.submit(make(arguments...), options, &state);
  });
  if (state && !status.ok() && !state->ended) state->end(status, base::now_ns());
  return Work(std::move(state));
}

Request all_reduce_request(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
  return {C::kAllReduce, in, out, count, type, op};
}

Request reduce_scatter_request(const void* in, void* out, size_t count, DataType type,
                               ReduceOp op) {
  return {C::kReduceScatter, in, out, count, type, op};
}

Request all_gather_request(const void* in, void* out, size_t count, DataType type) {
  return {C::kAllGather, in, out, count, type};
}

Request broadcast_request(const void* in, void* out, size_t count, DataType type, int root) {
  return {C::kBroadcast, in, out, count, type, ReduceOp::kSum, root};
}

Request reduce_request(const void* in, void* out, size_t count, DataType type, int root,
                       ReduceOp op) {
  return {C::kReduce, in, out, count, type, op, root};
}

Request gather_request(const void* in, void* out, size_t count, DataType type, int root) {
  return {C::kGather, in, out, count, type, ReduceOp::kSum, root};
}

Request scatter_request(const void* in, void* out, size_t count, DataType type, int root) {
  return {C::kScatter, in, out, count, type, ReduceOp::kSum, root};
}

Request all_to_all_request(const void* in, void* out, size_t count, DataType type) {
  return {C::kAllToAll, in, out, count, type};
}

VaryingRequest all_gather_v_request(const void* in, void* out, std::span<const size_t> counts,
                                    std::span<const size_t> offsets, DataType type) {
  return {{C::kAllGatherV, in, out, 0, type}, comm::make_layout({}, {}, counts, offsets)};
}

VaryingRequest reduce_scatter_v_request(const void* in, void* out, std::span<const size_t> counts,
                                        std::span<const size_t> offsets, DataType type,
                                        ReduceOp op) {
  return {{C::kReduceScatterV, in, out, 0, type, op}, comm::make_layout(counts, offsets, {}, {})};
}

VaryingRequest all_to_all_v_request(const void* in, std::span<const size_t> in_counts,
                                    std::span<const size_t> in_offsets, void* out,
                                    std::span<const size_t> out_counts,
                                    std::span<const size_t> out_offsets, DataType type) {
  return {{C::kAllToAllV, in, out, 0, type},
          comm::make_layout(in_counts, in_offsets, out_counts, out_offsets)};
}

VaryingRequest gather_v_request(const void* in, void* out, std::span<const size_t> counts,
                                std::span<const size_t> offsets, DataType type, int root) {
  return {{C::kGatherV, in, out, 0, type, ReduceOp::kSum, root},
          comm::make_layout({}, {}, counts, offsets)};
}

VaryingRequest scatter_v_request(const void* in, void* out, std::span<const size_t> counts,
                                 std::span<const size_t> offsets, DataType type, int root) {
  return {{C::kScatterV, in, out, 0, type, ReduceOp::kSum, root},
          comm::make_layout(counts, offsets, {}, {})};
}

Request inclusive_scan_request(const void* in, void* out, size_t count, DataType type,
                               ReduceOp op) {
  return {C::kInclusiveScan, in, out, count, type, op};
}

Request exclusive_scan_request(const void* in, void* out, size_t count, DataType type,
                               ReduceOp op) {
  return {C::kExclusiveScan, in, out, count, type, op};
}

Request barrier_request() { return {C::kBarrier}; }

Transfer send_of(const void* buffer, size_t count, DataType type, int peer) {
  // Only read by the sending end (lanes.hpp).
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(buffer));
  return {
      .sends = true, .peer = peer, .buffer = bytes, .count = count, .type = type, .timeout_ns = 0};
}
Transfer recv_of(void* buffer, size_t count, DataType type, int peer) {
  auto* const bytes = static_cast<std::byte*>(buffer);
  return {
      .sends = false, .peer = peer, .buffer = bytes, .count = count, .type = type, .timeout_ns = 0};
}

Transfer tagged_send_of(const void* buffer, size_t count, DataType type, int peer, int tag) {
  Transfer transfer = send_of(buffer, count, type, peer);
  transfer.tag = tag;
  transfer.exact = false;
  return transfer;
}
Transfer tagged_recv_of(void* buffer, size_t count, DataType type, int peer, int tag,
                        Envelope* envelope) {
  Transfer transfer = recv_of(buffer, count, type, peer);
  transfer.tag = tag;
  transfer.exact = false;
  transfer.envelope = envelope;
  return transfer;
}
Transfer probe_of(int peer, int tag, bool once, Envelope* envelope) {
  Transfer transfer = tagged_recv_of(nullptr, 0, DataType::kUint8, peer, tag, envelope);
  transfer.probes = true;
  transfer.once = once;
  return transfer;
}

}  // namespace

Status Communicator::all_reduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                                const CallOptions& options) {
  return run<all_reduce_request>(*impl_, options, in, out, count, type, op);
}
Work Communicator::all_reduce_async(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return start<all_reduce_request>(*impl_, options, in, out, count, type, op);
}

Status Communicator::reduce_scatter(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return run<reduce_scatter_request>(*impl_, options, in, out, count, type, op);
}
Work Communicator::reduce_scatter_async(const void* in, void* out, size_t count, DataType type,
                                        ReduceOp op, const CallOptions& options) {
  return start<reduce_scatter_request>(*impl_, options, in, out, count, type, op);
}

Status Communicator::all_gather(const void* in, void* out, size_t count, DataType type,
                                const CallOptions& options) {
  return run<all_gather_request>(*impl_, options, in, out, count, type);
}
Work Communicator::all_gather_async(const void* in, void* out, size_t count, DataType type,
                                    const CallOptions& options) {
  return start<all_gather_request>(*impl_, options, in, out, count, type);
}

Status Communicator::broadcast(const void* in, void* out, size_t count, DataType type, int root,
                               const CallOptions& options) {
  return run<broadcast_request>(*impl_, options, in, out, count, type, root);
}
Work Communicator::broadcast_async(const void* in, void* out, size_t count, DataType type, int root,
                                   const CallOptions& options) {
  return start<broadcast_request>(*impl_, options, in, out, count, type, root);
}

Status Communicator::reduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                            int root, const CallOptions& options) {
  return run<reduce_request>(*impl_, options, in, out, count, type, root, op);
}
Work Communicator::reduce_async(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                                int root, const CallOptions& options) {
  return start<reduce_request>(*impl_, options, in, out, count, type, root, op);
}

Status Communicator::gather(const void* in, void* out, size_t count, DataType type, int root,
                            const CallOptions& options) {
  return run<gather_request>(*impl_, options, in, out, count, type, root);
}
Work Communicator::gather_async(const void* in, void* out, size_t count, DataType type, int root,
                                const CallOptions& options) {
  return start<gather_request>(*impl_, options, in, out, count, type, root);
}

Status Communicator::scatter(const void* in, void* out, size_t count, DataType type, int root,
                             const CallOptions& options) {
  return run<scatter_request>(*impl_, options, in, out, count, type, root);
}
Work Communicator::scatter_async(const void* in, void* out, size_t count, DataType type, int root,
                                 const CallOptions& options) {
  return start<scatter_request>(*impl_, options, in, out, count, type, root);
}

Status Communicator::all_to_all(const void* in, void* out, size_t count, DataType type,
                                const CallOptions& options) {
  return run<all_to_all_request>(*impl_, options, in, out, count, type);
}
Work Communicator::all_to_all_async(const void* in, void* out, size_t count, DataType type,
                                    const CallOptions& options) {
  return start<all_to_all_request>(*impl_, options, in, out, count, type);
}

Status Communicator::all_gather_v(const void* in, void* out, std::span<const size_t> counts,
                                  std::span<const size_t> offsets, DataType type,
                                  const CallOptions& options) {
  return run<all_gather_v_request>(*impl_, options, in, out, counts, offsets, type);
}
Work Communicator::all_gather_v_async(const void* in, void* out, std::span<const size_t> counts,
                                      std::span<const size_t> offsets, DataType type,
                                      const CallOptions& options) {
  return start<all_gather_v_request>(*impl_, options, in, out, counts, offsets, type);
}

Status Communicator::reduce_scatter_v(const void* in, void* out, std::span<const size_t> counts,
                                      std::span<const size_t> offsets, DataType type, ReduceOp op,
                                      const CallOptions& options) {
  return run<reduce_scatter_v_request>(*impl_, options, in, out, counts, offsets, type, op);
}
Work Communicator::reduce_scatter_v_async(const void* in, void* out, std::span<const size_t> counts,
                                          std::span<const size_t> offsets, DataType type,
                                          ReduceOp op, const CallOptions& options) {
  return start<reduce_scatter_v_request>(*impl_, options, in, out, counts, offsets, type, op);
}

Status Communicator::all_to_all_v(const void* in, std::span<const size_t> in_counts,
                                  std::span<const size_t> in_offsets, void* out,
                                  std::span<const size_t> out_counts,
                                  std::span<const size_t> out_offsets, DataType type,
                                  const CallOptions& options) {
  return run<all_to_all_v_request>(*impl_, options, in, in_counts, in_offsets, out, out_counts,
                                   out_offsets, type);
}
Work Communicator::all_to_all_v_async(const void* in, std::span<const size_t> in_counts,
                                      std::span<const size_t> in_offsets, void* out,
                                      std::span<const size_t> out_counts,
                                      std::span<const size_t> out_offsets, DataType type,
                                      const CallOptions& options) {
  return start<all_to_all_v_request>(*impl_, options, in, in_counts, in_offsets, out, out_counts,
                                     out_offsets, type);
}

Status Communicator::gather_v(const void* in, void* out, std::span<const size_t> counts,
                              std::span<const size_t> offsets, DataType type, int root,
                              const CallOptions& options) {
  return run<gather_v_request>(*impl_, options, in, out, counts, offsets, type, root);
}
Work Communicator::gather_v_async(const void* in, void* out, std::span<const size_t> counts,
                                  std::span<const size_t> offsets, DataType type, int root,
                                  const CallOptions& options) {
  return start<gather_v_request>(*impl_, options, in, out, counts, offsets, type, root);
}

Status Communicator::scatter_v(const void* in, void* out, std::span<const size_t> counts,
                               std::span<const size_t> offsets, DataType type, int root,
                               const CallOptions& options) {
  return run<scatter_v_request>(*impl_, options, in, out, counts, offsets, type, root);
}
Work Communicator::scatter_v_async(const void* in, void* out, std::span<const size_t> counts,
                                   std::span<const size_t> offsets, DataType type, int root,
                                   const CallOptions& options) {
  return start<scatter_v_request>(*impl_, options, in, out, counts, offsets, type, root);
}

Status Communicator::inclusive_scan(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return run<inclusive_scan_request>(*impl_, options, in, out, count, type, op);
}
Work Communicator::inclusive_scan_async(const void* in, void* out, size_t count, DataType type,
                                        ReduceOp op, const CallOptions& options) {
  return start<inclusive_scan_request>(*impl_, options, in, out, count, type, op);
}

Status Communicator::exclusive_scan(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return run<exclusive_scan_request>(*impl_, options, in, out, count, type, op);
}
Work Communicator::exclusive_scan_async(const void* in, void* out, size_t count, DataType type,
                                        ReduceOp op, const CallOptions& options) {
  return start<exclusive_scan_request>(*impl_, options, in, out, count, type, op);
}

Status Communicator::barrier(const CallOptions& options) {
  return run<barrier_request>(*impl_, options);
}
Work Communicator::barrier_async(const CallOptions& options) {
  return start<barrier_request>(*impl_, options);
}

Status Communicator::send(const void* buffer, size_t count, DataType type, int peer,
                          const CallOptions& options) {
  return run<send_of>(*impl_, options, buffer, count, type, peer);
}
Work Communicator::send_async(const void* buffer, size_t count, DataType type, int peer,
                              const CallOptions& options) {
  return start<send_of>(*impl_, options, buffer, count, type, peer);
}
Status Communicator::recv(void* buffer, size_t count, DataType type, int peer,
                          const CallOptions& options) {
  return run<recv_of>(*impl_, options, buffer, count, type, peer);
}
Work Communicator::recv_async(void* buffer, size_t count, DataType type, int peer,
                              const CallOptions& options) {
  return start<recv_of>(*impl_, options, buffer, count, type, peer);
}

Status Communicator::send(const void* buffer, size_t count, DataType type, int peer, int tag,
                          const CallOptions& options) {
  return run<tagged_send_of>(*impl_, options, buffer, count, type, peer, tag);
}
Work Communicator::send_async(const void* buffer, size_t count, DataType type, int peer, int tag,
                              const CallOptions& options) {
  return start<tagged_send_of>(*impl_, options, buffer, count, type, peer, tag);
}
Status Communicator::recv(void* buffer, size_t count, DataType type, int peer, int tag,
                          Envelope* envelope, const CallOptions& options) {
  return run<tagged_recv_of>(*impl_, options, buffer, count, type, peer, tag, envelope);
}
Work Communicator::recv_async(void* buffer, size_t count, DataType type, int peer, int tag,
                              const CallOptions& options) {
  Envelope* const of_the_work = nullptr;
  return start<tagged_recv_of>(*impl_, options, buffer, count, type, peer, tag, of_the_work);
}
Result<Envelope> Communicator::probe(int peer, int tag, const CallOptions& options) {
  Envelope found;
  RONDO_TRY(run<probe_of>(*impl_, options, peer, tag, false, &found));
  return found;
}
Result<std::optional<Envelope>> Communicator::try_probe(int peer, int tag) {
  Envelope found;
  RONDO_TRY(run<probe_of>(*impl_, {}, peer, tag, true, &found));
  if (found.source >= 0) return std::optional<Envelope>(found);
  RONDO_TRY(impl_->check_senders(peer));
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
Plan Communicator::plan(Collective collective, size_t count, DataType type, bool direct,
                        Algorithm algorithm, ReduceOp op) const {
  auto found = find_plan(collective, count, type, direct, algorithm, op);
  return found.ok() ? *found : Plan{};
}
Result<Plan> Communicator::find_plan(Collective collective, size_t count, DataType type,
                                     bool direct, Algorithm algorithm, ReduceOp op) const {
  return base::guarded([&] { return impl_->plan(collective, count, type, direct, algorithm, op); });
}

}  // namespace rondo
