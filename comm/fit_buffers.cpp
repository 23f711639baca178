// See fit_buffers.hpp.
#include "comm/fit_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/base/refuse.hpp"

namespace rondo::comm {
namespace {

/// The blocks of one of the two buffers.
struct OneSide {
  std::span<const size_t> counts, offsets;
};

Status check_size(const Call& call, const char* what, size_t has, size_t needs) {
  if (has == needs) return {};
  return refuse(fmt::format("{}: {} holds {} elements, but the other arguments need {}",
                            name(call.collective), what, has, needs));
}

/// Elements up to the end of the last block.
size_t end_of(const OneSide& blocks) {
  size_t end = 0, at = 0;
  for (size_t b = 0; b < blocks.counts.size(); ++b) {
    const size_t begin = blocks.offsets.empty() ? at : blocks.offsets[b];
    if (blocks.counts[b] > 0) end = std::max(end, begin + blocks.counts[b]);
    at += blocks.counts[b];
  }
  return end;
}

/// One buffer of a _v call. Wrong numbers of counts and offsets are refused by the call itself.
Status check_blocks(const Call& call, const char* what, size_t has, const OneSide& own,
                    const OneSide& others, size_t rank, size_t ranks) {
  const auto whole = [ranks](const OneSide& b) {
    return b.counts.size() == ranks && (b.offsets.empty() || b.offsets.size() == ranks);
  };
  if (own.counts.empty()) {
    return whole(others) ? check_size(call, what, has, others.counts[rank]) : Status();
  }
  const size_t end = whole(own) ? end_of(own) : 0;
  if (has >= end) return {};
  return refuse(fmt::format("{}: {} holds {} elements, but its blocks end at {}",
                            name(call.collective), what, has, end));
}

}  // namespace

Status fit(Call& call, const InSpan& in, const OutSpan& out, int rank, int size) {
  const internal::Form form = internal::form_of(call.collective);
  const bool reads = !form.only_root_reads || rank == call.root;
  const bool writes = !form.only_root_writes || rank == call.root;
  if (reads && writes && in.type() != out.type()) {
    return refuse(fmt::format("{}: in holds {}, out holds {}", name(call.collective),
                              name(in.type()), name(out.type())));
  }
  call.in = in.data();
  call.out = out.data();
  call.type = reads ? in.type() : out.type();
  call.count = 0;
  const auto ranks = static_cast<size_t>(size);
  if (is_varying(call.collective)) {
    if (call.blocks == nullptr) return {};  // refused with the other arguments
    const auto own = static_cast<size_t>(rank);
    const OneSide ins{call.blocks->in_counts, call.blocks->in_offsets};
    const OneSide outs{call.blocks->out_counts, call.blocks->out_offsets};
    if (reads) RONDO_TRY(check_blocks(call, "in", in.size(), ins, outs, own, ranks));
    if (writes) RONDO_TRY(check_blocks(call, "out", out.size(), outs, ins, own, ranks));
    return {};
  }
  // The buffer that every rank has says the count.
  const bool by_out = !reads || form.out == internal::Holds::kOne;
  call.count = by_out ? out.size() : in.size();
  if ((by_out ? form.out : form.in) == internal::Holds::kEach) call.count /= ranks;
  if (reads)
    RONDO_TRY(check_size(call, "in", in.size(), internal::elements(form.in, call.count, ranks)));
  if (writes)
    RONDO_TRY(check_size(call, "out", out.size(), internal::elements(form.out, call.count, ranks)));
  return {};
}

}  // namespace rondo::comm
