// A call of every collective on closed-form data, and a check of its result: what the tests of
// collectives run under many conditions.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing::calls {

struct Case {
  size_t count;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  bool library = false;
  size_t misalignment = 0;
  Algorithm algorithm = Algorithm::kAuto;

  std::string to_string(Collective collective, const Communicator& c) const {
    return std::string(name(collective)) + " rank " + std::to_string(c.rank()) + "/" +
           std::to_string(c.size()) + " count " + std::to_string(count) + " " +
           std::string(name(type)) + " " + std::string(name(op)) + (in_place ? " in place" : "") +
           (library ? " library" : "") + " +" + std::to_string(misalignment) + " " +
           std::string(name(algorithm));
  }
};

/// Where in a buffer something begins.
struct Element {
  Buffer& buffer;
  size_t at = 0;
};

/// A call of a Case: its buffers, and what they must hold.
class Call {
 public:
  Call(Communicator& comm, const Case& c, Collective collective)
      : options{.algorithm = c.algorithm},
        n(static_cast<size_t>(comm.size())),
        r(static_cast<size_t>(comm.rank())),
        what_(c.to_string(collective, comm)),
        c_(c) {}
  const CallOptions options;
  const size_t n, r;  // ranks, and this one

  int root(size_t shift) const { return static_cast<int>((c_.count + shift) % n); }
  Buffer buffer(size_t count) const {
    return {count * size_of(c_.type), c_.library, c_.misalignment};
  }
  unsigned char* pointer(const Element& p) const {
    return p.buffer.data() + p.at * size_of(c_.type);
  }
  /// Fills in this rank's numbers, from its first.
  void give(const Element& p, size_t count) const {
    fill(p.buffer, p.at, count, c_.type, c_.op, static_cast<int>(r));
  }
  /// kUnavailable is the right answer where a forced algorithm does not exist; every rank must give
  /// it.
  bool done(const Status& status) const {
    if (c_.algorithm != Algorithm::kAuto && status.code() == Code::kUnavailable) return false;
    expect_ok(status, what_);
    return true;
  }
  /// `count` numbers of `rank`, from its number `first` on.
  void expect_of(size_t rank, const Element& p, size_t count, size_t first = 0) const {
    check(
        p.buffer, p.at, count, c_.type,
        [&](size_t i) { return contribution(static_cast<int>(rank), first + i, c_.op); },
        what_ + ": numbers of rank " + std::to_string(rank));
  }
  /// What the first `ranks` ranks' numbers give, from number `first` on.
  void expect_reduced(size_t ranks, const Element& p, size_t count, size_t first = 0) const {
    check(
        p.buffer, p.at, count, c_.type,
        [&](size_t i) { return expected(static_cast<int>(ranks), first + i, c_.op, c_.type); },
        what_);
  }
  const std::string& what() const { return what_; }

 private:
  const std::string what_;
  const Case& c_;
};

inline void all_reduce(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  Buffer in = call.buffer(c.count), other = call.buffer(c.count);
  Buffer& out = c.in_place ? in : other;
  call.give({in}, c.count);
  if (!call.done(comm.all_reduce(in.data(), out.data(), c.count, c.type, c.op, call.options))) {
    return;
  }
  call.expect_reduced(call.n, {out}, c.count);
  if (!c.in_place) call.expect_of(call.r, {in}, c.count);
}

inline void broadcast(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const int root = call.root(0);
  const bool reads = comm.rank() == root;
  Buffer in = call.buffer(c.count), other = call.buffer(c.count);
  Buffer& out = c.in_place ? in : other;
  if (reads) call.give({in}, c.count);
  const Status status =
      comm.broadcast(reads ? in.data() : nullptr, out.data(), c.count, c.type, root, call.options);
  if (call.done(status)) call.expect_of(static_cast<size_t>(root), {out}, c.count);
}

inline void reduce(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const int root = call.root(1);
  const bool writes = comm.rank() == root;
  Buffer in = call.buffer(c.count), other = call.buffer(c.count);
  Buffer& out = c.in_place ? in : other;
  call.give({in}, c.count);
  if (!call.done(comm.reduce(in.data(), writes ? out.data() : nullptr, c.count, c.type, c.op, root,
                             call.options))) {
    return;
  }
  if (writes) call.expect_reduced(call.n, {out}, c.count);
  if (!writes || !c.in_place) call.expect_of(call.r, {in}, c.count);
}

/// One block for each rank: `c.count` elements each, or, of a _v collective, about as many, some of
/// them none. They lie one after the other, or with gaps and the last rank's first.
struct Blocks {
  std::vector<size_t> counts, offsets;
  size_t all = 0;  // elements from the first to the end of the last, gaps included
  bool apart;

  /// `ends`: block k is what the first of these ranks has for the second one.
  Blocks(const Call& call, const Case& c, bool varies, bool lie_apart,
         const std::function<std::pair<size_t, size_t>(size_t k)>& ends)
      : counts(call.n), offsets(call.n), apart(varies && lie_apart) {
    for (size_t i = 0; i < call.n; ++i) {
      const size_t k = apart ? call.n - 1 - i : i;
      const auto [from, to] = ends(k);
      const size_t kind = (from * 3 + to * 5 + 1) % 4;
      counts[k] = !varies ? c.count : kind == 1 ? 0 : c.count + kind;
      offsets[k] = all;
      all += counts[k] + (apart ? k % 2 : 0);
    }
  }
  /// The offsets as the caller passes them: none where blocks lie one after the other.
  std::span<const size_t> given() const {
    return apart ? std::span<const size_t>(offsets) : std::span<const size_t>();
  }
};

inline void reduce_scatter(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const bool varies = collective == Collective::kReduceScatterV;
  const Blocks b(call, c, varies, c.count % 2 == 0, [](size_t k) {
    return std::pair{size_t{0}, k};
  });
  const size_t count = b.counts[call.r], own = b.offsets[call.r];
  Buffer in = call.buffer(b.all), other = call.buffer(count);
  const Element out = c.in_place ? Element{in, own} : Element{other};
  unsigned char* const to = call.pointer(out);
  call.give({in}, b.all);
  const Status status =
      varies ? comm.reduce_scatter_v(in.data(), to, b.counts, b.given(), c.type, c.op, call.options)
             : comm.reduce_scatter(in.data(), to, c.count, c.type, c.op, call.options);
  if (call.done(status)) call.expect_reduced(call.n, out, count, own);
}

inline void all_gather(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const bool varies = collective == Collective::kAllGatherV;
  const Blocks b(call, c, varies, c.count % 2 == 1, [](size_t k) {
    return std::pair{k, size_t{0}};
  });
  Buffer other = call.buffer(b.counts[call.r]), out = call.buffer(b.all);
  const Element in = c.in_place ? Element{out, b.offsets[call.r]} : Element{other};
  const unsigned char* const from = call.pointer(in);
  call.give(in, b.counts[call.r]);
  const Status status =
      varies ? comm.all_gather_v(from, out.data(), b.counts, b.given(), c.type, call.options)
             : comm.all_gather(from, out.data(), c.count, c.type, call.options);
  if (!call.done(status)) return;
  for (size_t rank = 0; rank < call.n; ++rank)
    call.expect_of(rank, {out, b.offsets[rank]}, b.counts[rank]);
}

inline void gather(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const bool varies = collective == Collective::kGatherV;
  const int root = call.root(2);
  const bool writes = comm.rank() == root;
  const Blocks b(call, c, varies, c.count % 2 == 1, [](size_t k) {
    return std::pair{k, size_t{0}};
  });
  Buffer other = call.buffer(b.counts[call.r]), out = call.buffer(b.all);
  const Element in = writes && c.in_place ? Element{out, b.offsets[call.r]} : Element{other};
  const unsigned char* const from = call.pointer(in);
  unsigned char* const to = writes ? out.data() : nullptr;
  call.give(in, b.counts[call.r]);
  const Status status =
      varies ? comm.gather_v(from, to, b.counts, b.given(), c.type, root, call.options)
             : comm.gather(from, to, c.count, c.type, root, call.options);
  if (!call.done(status) || !writes) return;
  for (size_t rank = 0; rank < call.n; ++rank)
    call.expect_of(rank, {out, b.offsets[rank]}, b.counts[rank]);
}

inline void scatter(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const bool varies = collective == Collective::kScatterV;
  const int root = call.root(3);
  const bool reads = comm.rank() == root;
  const Blocks b(call, c, varies, c.count % 2 == 0, [](size_t k) {
    return std::pair{size_t{0}, k};
  });
  const size_t count = b.counts[call.r], own = b.offsets[call.r];
  Buffer in = call.buffer(b.all), other = call.buffer(count);
  const Element out = reads && c.in_place ? Element{in, own} : Element{other};
  const unsigned char* const from = reads ? in.data() : nullptr;
  unsigned char* const to = call.pointer(out);
  if (reads) call.give({in}, b.all);
  const Status status =
      varies ? comm.scatter_v(from, to, b.counts, b.given(), c.type, root, call.options)
             : comm.scatter(from, to, c.count, c.type, root, call.options);
  if (call.done(status)) call.expect_of(static_cast<size_t>(root), out, count, own);
}

inline void all_to_all(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const bool varies = collective == Collective::kAllToAllV, odd = c.count % 2 == 1;
  // The direct one cannot be done in place, and says so; the _v one never can.
  const bool safe = c.algorithm == Algorithm::kAuto ||
                    algorithms::is_in_place_safe(Collective::kAllToAll, c.algorithm);
  const bool in_place = c.in_place && safe && !varies;
  const auto sent_by = [&](size_t rank) {
    return Blocks(call, c, varies, odd, [rank](size_t k) { return std::pair{rank, k}; });
  };
  const Blocks ins = sent_by(call.r);
  const Blocks outs(call, c, varies, !odd, [&](size_t k) { return std::pair{k, call.r}; });
  Buffer in = call.buffer(ins.all), other = call.buffer(outs.all);
  Buffer& out = in_place ? in : other;
  call.give({in}, ins.all);
  const Status status = varies
                            ? comm.all_to_all_v(in.data(), ins.counts, ins.given(), out.data(),
                                                outs.counts, outs.given(), c.type, call.options)
                            : comm.all_to_all(in.data(), out.data(), c.count, c.type, call.options);
  if (!call.done(status)) return;
  for (size_t rank = 0; rank < call.n; ++rank) {
    call.expect_of(rank, {out, outs.offsets[rank]}, outs.counts[rank],
                   sent_by(rank).offsets[call.r]);
  }
}

/// What an exclusive scan leaves on rank 0, not taken from the library.
inline std::vector<unsigned char> identity_of(DataType type, ReduceOp op) {
  std::vector<unsigned char> bytes(size_of(type));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (is_floating(type) || op == ReduceOp::kProd) {
    const double value = op == ReduceOp::kProd  ? 1
                         : op == ReduceOp::kMin ? kInfinity
                         : op == ReduceOp::kMax ? -kInfinity
                                                : 0;
    store(bytes.data(), type, value);
    return bytes;
  }
  const bool is_signed = type == DataType::kInt8 || type == DataType::kInt16 ||
                         type == DataType::kInt32 || type == DataType::kInt64;
  if (op == ReduceOp::kBand || op == ReduceOp::kMin) std::ranges::fill(bytes, 0xff);
  if (op == ReduceOp::kMin && is_signed) bytes.back() = 0x7f;
  if (op == ReduceOp::kMax && is_signed) bytes.back() = 0x80;
  return bytes;
}

inline void scan(Communicator& comm, const Case& c, Collective collective) {
  const Call call(comm, c, collective);
  const bool inclusive = collective == Collective::kInclusiveScan;
  Buffer in = call.buffer(c.count), other = call.buffer(c.count);
  Buffer& out = c.in_place ? in : other;
  call.give({in}, c.count);
  const Status status =
      inclusive ? comm.inclusive_scan(in.data(), out.data(), c.count, c.type, c.op, call.options)
                : comm.exclusive_scan(in.data(), out.data(), c.count, c.type, c.op, call.options);
  if (c.op == ReduceOp::kAvg) {
    expect(status.code() == Code::kInvalidArgument, call.what() + ": " + status.to_string());
    return;
  }
  if (!call.done(status)) return;
  const size_t folded = call.r + (inclusive ? 1 : 0);
  if (folded > 0) {
    call.expect_reduced(folded, {out}, c.count);
  } else {
    const std::vector<unsigned char> identity = identity_of(c.type, c.op);
    for (size_t i = 0; i < c.count; ++i) {
      expect(std::memcmp(call.pointer({out, i}), identity.data(), identity.size()) == 0,
             call.what() + ": not the identity");
    }
    out.check_guards(call.what());
  }
  if (!c.in_place) call.expect_of(call.r, {in}, c.count);
}

struct NamedCall {
  Collective collective;
  void (*make)(Communicator&, const Case&, Collective);
};
inline constexpr NamedCall kCalls[] = {
    {Collective::kAllReduce, all_reduce},  {Collective::kReduceScatter, reduce_scatter},
    {Collective::kAllGather, all_gather},  {Collective::kBroadcast, broadcast},
    {Collective::kReduce, reduce},         {Collective::kGather, gather},
    {Collective::kScatter, scatter},       {Collective::kAllToAll, all_to_all},
    {Collective::kAllGatherV, all_gather}, {Collective::kReduceScatterV, reduce_scatter},
    {Collective::kAllToAllV, all_to_all},  {Collective::kGatherV, gather},
    {Collective::kScatterV, scatter},      {Collective::kInclusiveScan, scan},
    {Collective::kExclusiveScan, scan},
};
static_assert(std::size(kCalls) == kCollectives - 1, "all but the barrier");

enum class Which { kAll, kReductions };

inline void everything(Communicator& comm, const Case& c, Which which = Which::kAll) {
  for (const NamedCall& call : kCalls) {
    if (which == Which::kReductions && !internal::form_of(call.collective).reduces) continue;
    // An algorithm that does not do the collective, or not on one host, is refused before the count
    // matters.
    if (c.algorithm != Algorithm::kAuto && c.count > 1 &&
        (algorithms::find(call.collective, c.algorithm) == nullptr ||
         algorithms::traits_of(c.algorithm).needs.hosts)) {
      continue;
    }
    call.make(comm, c, call.collective);
  }
}

}  // namespace rondo::testing::calls
