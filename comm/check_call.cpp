// See check_call.hpp.
#include "comm/check_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "comm/base/counted.hpp"
#include "comm/base/refuse.hpp"
#include "comm/board/tags.hpp"

namespace rondo::comm {

using schedule::BlockLayout;

namespace {

std::string_view word(const Call& r) { return name(r.collective); }

/// Bytes of a call's larger buffer must stay below this, so that no sum of offsets overflows.
constexpr size_t kMostBytes = std::numeric_limits<size_t>::max() / 2;

std::vector<uint64_t> offsets_of(std::span<const size_t> counts, std::span<const size_t> offsets) {
  if (!offsets.empty()) return {offsets.begin(), offsets.end()};
  std::vector<uint64_t> sums;
  uint64_t sum = 0;
  for (const size_t count : counts) {
    sums.push_back(sum);
    // Too much stays too much, and is refused: check_blocks().
    sum = count > kMostBytes - std::min(sum, uint64_t{kMostBytes}) ? kMostBytes : sum + count;
  }
  return sums;
}

/// The range of bytes that a buffer takes, from its pointer on.
struct Span {
  size_t begin = 0, end = 0;
};

Span span_of(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& offsets,
             size_t element) {
  Span span{.begin = kMostBytes, .end = 0};
  for (size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] == 0) continue;
    span.begin = std::min(span.begin, offsets[b] * element);
    span.end = std::max(span.end, (offsets[b] + counts[b]) * element);
  }
  return span.end == 0 ? Span{} : span;
}

Span span_of(const Call& r, const BlockLayout& l, bool out, int rank, int size) {
  const internal::Form form = internal::form_of(r.collective);
  const internal::Holds holds = out ? form.out : form.in;
  const size_t element = size_of(r.type);
  if (!is_varying(r.collective)) {
    return {.begin = 0,
            .end = internal::elements(holds, r.count * element, static_cast<size_t>(size))};
  }
  if (holds == internal::Holds::kOne) {
    return {.begin = 0,
            .end = (out ? l.in_counts : l.out_counts)[static_cast<size_t>(rank)] * element};
  }
  return out ? span_of(l.out_counts, l.out_offsets, element)
             : span_of(l.in_counts, l.in_offsets, element);
}

/// One buffer's blocks. `apart`: they are written, and must not overlap.
Status check_blocks(const Call& r, const char* what, const std::vector<uint64_t>& counts,
                    const std::vector<uint64_t>& offsets, int size, bool apart) {
  const auto ranks = static_cast<size_t>(size);
  if (counts.size() != ranks || offsets.size() != ranks) {
    return refuse(fmt::format("{}: {} counts and {} offsets of {} blocks for {} ranks", word(r),
                              counts.size(), offsets.size(), what, size));
  }
  const size_t most = kMostBytes / size_of(r.type);
  std::vector<size_t> order;
  for (size_t b = 0; b < ranks; ++b) {
    if (counts[b] > most || offsets[b] > most - counts[b]) {
      return refuse(fmt::format("{}: {} block {} of {} {} at offset {} overflows the address space",
                                word(r), what, b, counts[b], name(r.type), offsets[b]));
    }
    if (counts[b] > 0) order.push_back(b);
  }
  if (!apart) return {};
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t a = order[i - 1], b = order[i];
    if (offsets[a] + counts[a] > offsets[b]) {
      return refuse(fmt::format("{}: {} blocks {} and {} overlap at element {}", word(r), what, a,
                                b, offsets[b]));
    }
  }
  return {};
}

Status check_layout(const Call& r, const BlockLayout& l, int rank, int size) {
  if (!is_varying(r.collective)) return {};
  if (r.blocks == nullptr) {
    return refuse(
        fmt::format("{}: Call::blocks is null; set it to a Blocks with a count for each of "
                    "{} ranks",
                    word(r), size));
  }
  const internal::Form form = internal::form_of(r.collective);
  if (form.in == internal::Holds::kEach) {
    // In place a block is written while others are still read.
    const bool apart = r.collective == Collective::kReduceScatterV;
    RONDO_TRY(check_blocks(r, "input", l.in_counts, l.in_offsets, size, apart));
  }
  if (form.out == internal::Holds::kEach) {
    RONDO_TRY(check_blocks(r, "output", l.out_counts, l.out_offsets, size, true));
  }
  const auto own = static_cast<size_t>(rank);
  if (r.collective == Collective::kAllToAllV && l.in_counts[own] != l.out_counts[own]) {
    return refuse(fmt::format("{}: rank {} sends itself {} elements but expects {}", word(r), rank,
                              l.in_counts[own], l.out_counts[own]));
  }
  return {};
}

/// Whether the digits of CallOptions::layout are dimensions, in another order than C's.
bool is_order(uint64_t layout) {
  uint64_t found = 0, digits = 0;
  bool turned = false;
  for (uint64_t rest = layout, least = ~uint64_t{0}; rest != 0; rest >>= 4, ++digits) {
    const uint64_t digit = rest & 0xf;
    found |= uint64_t{1} << digit;
    turned = turned || digit > least;
    least = digit;
  }
  return turned && found == ((uint64_t{2} << digits) - 2);
}

// Whether the buffers overlap in the one way that is allowed: the same elements in the same place.
bool is_in_place(const Call& r, const BlockLayout& l, int rank) {
  if (!reads(r, rank) || !writes(r, rank) || r.collective == Collective::kAllToAllV) return false;
  const internal::Form form = internal::form_of(r.collective);
  const auto in = reinterpret_cast<uintptr_t>(r.in), out = reinterpret_cast<uintptr_t>(r.out);
  const bool wide_in = form.in == internal::Holds::kEach && form.out == internal::Holds::kOne;
  const bool wide_out = form.in == internal::Holds::kOne && form.out == internal::Holds::kEach;
  const auto own = static_cast<size_t>(rank);
  size_t offset = own * r.count;
  if (is_varying(r.collective)) offset = (wide_in ? l.in_offsets : l.out_offsets)[own];
  offset *= size_of(r.type);
  return out + (wide_out ? offset : 0) == in + (wide_in ? offset : 0);
}

Status check_buffers(const Call& r, const BlockLayout& l, int rank, int size) {
  if (r.collective == Collective::kBarrier) return {};
  const Span in = span_of(r, l, false, rank, size), out = span_of(r, l, true, rank, size);
  if (reads(r, rank) && r.in == nullptr && in.end > 0) {
    return refuse(fmt::format("{}: the input pointer is null but holds {} bytes", word(r), in.end));
  }
  if (writes(r, rank) && r.out == nullptr && out.end > 0) {
    return refuse(
        fmt::format("{}: the output pointer is null but holds {} bytes", word(r), out.end));
  }
  if (!reads(r, rank) || !writes(r, rank) || in.end == 0 || out.end == 0) return {};
  if (is_in_place(r, l, rank)) return {};
  const auto from = reinterpret_cast<uintptr_t>(r.in), to = reinterpret_cast<uintptr_t>(r.out);
  if (from + in.end <= to + out.begin || to + out.end <= from + in.begin) return {};
  return refuse(fmt::format(
      "{}: input [{:#x}, +{}) and output [{:#x}, +{}) overlap without being in place", word(r),
      from + in.begin, in.end - in.begin, to + out.begin, out.end - out.begin));
}

/// What a fold in that type multiplies by: factor_as() in kernels/element.hpp.
bool holds_factor(DataType type, double factor) {
  const auto is_whole = [factor](double least, double end) {
    return factor >= least && factor < end && factor == std::trunc(factor);
  };
  switch (type) {
    case DataType::kFloat64:
      return true;
    case DataType::kBool:
      return factor == factor;  // any number but 0 is true
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64: {
      const double end = std::ldexp(1, static_cast<int>(8 * size_of(type)) - 1);
      return is_whole(-end, end);
    }
    case DataType::kUint8:
    case DataType::kUint16:
    case DataType::kUint32:
    case DataType::kUint64:
      return is_whole(0, std::ldexp(1, static_cast<int>(8 * size_of(type))));
    default: {  // folded in fp32
      const double rounded = static_cast<float>(factor);
      return !std::isfinite(factor) || (std::isfinite(rounded) && (factor == 0) == (rounded == 0));
    }
  }
}

Status check_factor(const Call& r, double factor) {
  if (r.op != ReduceOp::kMulSum || !internal::form_of(r.collective).reduces) {
    if (factor == 1) return {};
    return refuse(
        fmt::format("{}: a factor of {} is for the scaled sum (mulsum) only", word(r), factor));
  }
  if (holds_factor(r.type, factor)) return {};
  if (is_floating(r.type)) {
    return refuse(fmt::format(
        "{}: a factor of {} becomes {} in fp32, in which {} is multiplied; pass one from 1.5e-45 "
        "to 3.4e38, or use double",
        word(r), factor, static_cast<float>(factor), name(r.type)));
  }
  return refuse(fmt::format(
      "{}: a factor of {} is not a value of {}; pass a whole number in the range of the type, or "
      "use a floating type",
      word(r), factor, name(r.type)));
}

}  // namespace

Call without_unused(const Call& call) {
  if (call.collective == Collective::kBarrier) {
    return {.collective = Collective::kBarrier, .type = DataType::kUint8};
  }
  Call used = call;
  if (is_varying(call.collective)) used.count = 0;
  if (!internal::form_of(call.collective).reduces) used.op = ReduceOp::kSum;
  if (!internal::is_rooted(call.collective)) used.root = 0;
  return used;
}

BlockLayout layout_of(const Call& call) {
  if (!is_varying(call.collective) || call.blocks == nullptr) return {};
  const internal::Form form = internal::form_of(call.collective);
  const Blocks& b = *call.blocks;
  BlockLayout layout;
  if (form.in == internal::Holds::kEach) {
    layout.in_counts = {b.in_counts.begin(), b.in_counts.end()};
    layout.in_offsets = offsets_of(b.in_counts, b.in_offsets);
  }
  if (form.out == internal::Holds::kEach) {
    layout.out_counts = {b.out_counts.begin(), b.out_counts.end()};
    layout.out_offsets = offsets_of(b.out_counts, b.out_offsets);
  }
  return layout;
}

bool reads(const Call& call, int rank) {
  return !internal::form_of(call.collective).only_root_reads || rank == call.root;
}
bool writes(const Call& call, int rank) {
  return !internal::form_of(call.collective).only_root_writes || rank == call.root;
}

Status check_values(const Call& r, const CallOptions& options, int size) {
  if (static_cast<int>(r.collective) >= kCollectives) {
    return refuse(fmt::format("Call::collective is {}: set it to a Collective",
                              static_cast<int>(r.collective)));
  }
  if (static_cast<int>(r.type) >= kDataTypes) {
    return refuse(fmt::format("{}: unknown data type {}", word(r), static_cast<int>(r.type)));
  }
  if (static_cast<int>(r.op) >= kReduceOps) {
    return refuse(fmt::format("{}: unknown operator {}", word(r), static_cast<int>(r.op)));
  }
  RONDO_TRY(check_factor(r, options.factor));
  if (internal::form_of(r.collective).reduces && !supports(r.collective, r.type, r.op)) {
    if (supports(r.type, r.op)) {
      return refuse(fmt::format(
          "{}: there is no {} in a scan, because ranks fold different numbers of inputs; divide "
          "the sums",
          word(r), name(r.op)));
    }
    return refuse(fmt::format("{}: there is no {} of {}", word(r), name(r.op), name(r.type)));
  }
  if (static_cast<int>(options.algorithm) >= kAlgorithms) {
    return refuse(
        fmt::format("{}: unknown algorithm {}", word(r), static_cast<int>(options.algorithm)));
  }
  if (options.layout != 0 && (is_varying(r.collective) || !is_order(options.layout))) {
    return refuse(
        fmt::format("{}: invalid layout {:#x}: give the dimensions from the slowest to the "
                    "fastest, a hexadecimal digit each, counted from 1; pass 0 for C order; a "
                    "collective with counts takes 0 only",
                    word(r), options.layout));
  }
  if (options.stall_timeout.count() < 0) {
    return refuse(fmt::format("{}: stall_timeout of {} ms; pass 0 for the communicator's own",
                              word(r), options.stall_timeout.count()));
  }
  if (r.root < 0 || r.root >= size) {
    return refuse(fmt::format("{}: root {} is none of {}", word(r), r.root, counted(size, "rank")));
  }
  const size_t most = kMostBytes / size_of(r.type) / static_cast<size_t>(size);
  if (r.count > most) {
    return refuse(fmt::format("{}: count {} of {} on {} ranks overflows the address space", word(r),
                              r.count, name(r.type), size));
  }
  return {};
}

Status check(const Call& call, const BlockLayout& layout, const CallOptions& options, int rank,
             int size) {
  RONDO_TRY(check_values(call, options, size));
  RONDO_TRY(check_layout(call, layout, rank, size));
  return check_buffers(call, layout, rank, size);
}

const char* word_for(const engine::Transfer& transfer) {
  return transfer.probes ? "probe" : transfer.sends ? "send" : "recv";
}

namespace {

Status check_ends(const engine::Transfer& t, int size) {
  const char* const word = word_for(t);
  const bool any_source = t.peer == kAnySource && !t.sends;
  if (!any_source && (t.peer < 0 || t.peer >= size)) {
    return refuse(fmt::format("{}: rank {} is none of {}", word, t.peer, counted(size, "rank")));
  }
  const bool any_tag = t.tag == kAnyTag && !t.sends;
  if (!any_tag && (t.tag < 0 || t.tag > kMaxTag)) {
    return refuse(fmt::format("{}: tag {} is not between 0 and {}", word, t.tag, kMaxTag));
  }
  return {};
}

}  // namespace

Status check(const engine::Transfer& transfer, const CallOptions& options, int size) {
  const char* const word = word_for(transfer);
  RONDO_TRY(check_ends(transfer, size));
  if (static_cast<int>(transfer.type) >= kDataTypes) {
    return refuse(fmt::format("{}: unknown data type {}", word, static_cast<int>(transfer.type)));
  }
  if (transfer.count > board::kMostCount) {
    return refuse(fmt::format("{}: count {} overflows what a message can hold, {} elements", word,
                              transfer.count, board::kMostCount));
  }
  if (transfer.buffer == nullptr && transfer.count > 0) {
    return refuse(fmt::format("{}: the buffer is null but count is {}", word, transfer.count));
  }
  if (options.algorithm != Algorithm::kAuto || options.factor != 1 || options.layout != 0) {
    return refuse(fmt::format("{}: algorithms, factors and layouts are for collectives", word));
  }
  if (options.stall_timeout.count() < 0) {
    return refuse(fmt::format("{}: stall_timeout of {} ms; pass 0 for the communicator's own", word,
                              options.stall_timeout.count()));
  }
  return {};
}

Shape shape_of(const Call& call, BlockLayout layout, const CallOptions& options, int rank) {
  Shape shape{.call = {.collective = call.collective,
                       .type = call.type,
                       .op = call.op,
                       .algorithm = options.algorithm,
                       .root = call.root,
                       .count = call.count,
                       .layout = options.layout},
              .in_place = is_in_place(call, layout, rank)};
  if (!is_varying(call.collective)) return shape;
  shape.layout = std::move(layout);
  if (call.collective == Collective::kAllToAllV) return shape;  // ranks differ
  const BlockLayout& l = shape.layout;
  shape.call.count = 0;
  uint64_t hash = 0x9e3779b97f4a7c15u;
  const auto mix = [&hash](const std::vector<uint64_t>& numbers) {
    for (const uint64_t number : numbers)
      hash = (hash ^ number) * 0xff51afd7ed558ccdu + (hash >> 29);
  };
  for (const auto* counts : {&l.in_counts, &l.out_counts}) {
    for (const uint64_t count : *counts) shape.call.count += count;
    mix(*counts);
  }
  mix(l.in_offsets);
  mix(l.out_offsets);
  shape.call.layout = hash | 1;  // 0 is for calls without one
  return shape;
}

}  // namespace rondo::comm
