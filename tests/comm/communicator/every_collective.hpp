// A call of every collective on closed-form data, and a check of its result: what the tests of
// collectives run under many conditions.
#pragma once

#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <string>
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

// kUnavailable is the right answer where a forced algorithm does not exist; every rank must give
// it.
inline bool carried_out(const Status& status, const Case& c, const std::string& what) {
  if (c.algorithm != Algorithm::kAuto && status.code() == Code::kUnavailable) return false;
  expect_ok(status, what);
  return true;
}

inline void all_reduce(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kAllReduce, comm);
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes, c.library, c.misalignment), other(bytes, c.library, c.misalignment);
  Buffer& out = c.in_place ? in : other;
  fill(in, 0, c.count, c.type, c.op, comm.rank());
  const Status status =
      comm.all_reduce(in.data(), out.data(), c.count, c.type, c.op, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  check(
      out, 0, c.count, c.type, [&](size_t i) { return expected(comm.size(), i, c.op, c.type); },
      what);
  if (!c.in_place) {
    check(
        in, 0, c.count, c.type, [&](size_t i) { return contribution(comm.rank(), i, c.op); },
        what + ": input");
  }
}

inline void reduce_scatter(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kReduceScatter, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes * n, c.library, c.misalignment), other(bytes, c.library, c.misalignment);
  fill(in, 0, c.count * n, c.type, c.op, comm.rank());
  unsigned char* out = c.in_place ? in.data() + r * bytes : other.data();
  const Status status =
      comm.reduce_scatter(in.data(), out, c.count, c.type, c.op, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  const auto value = [&](size_t i) { return expected(comm.size(), r * c.count + i, c.op, c.type); };
  if (c.in_place) {
    Buffer copy(bytes, false);
    std::memcpy(copy.data(), out, bytes);
    check(copy, 0, c.count, c.type, value, what);
  } else {
    check(other, 0, c.count, c.type, value, what);
  }
}

inline void all_gather(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kAllGather, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes, c.library, c.misalignment), out(bytes * n, c.library, c.misalignment);
  fill(in, 0, c.count, c.type, c.op, comm.rank());
  if (c.in_place) fill(out, r * c.count, c.count, c.type, c.op, comm.rank());
  const void* from = c.in_place ? out.data() + r * bytes : in.data();
  const Status status =
      comm.all_gather(from, out.data(), c.count, c.type, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  for (size_t rank = 0; rank < n; ++rank) {
    check(
        out, rank * c.count, c.count, c.type,
        [&](size_t i) { return contribution(static_cast<int>(rank), i, c.op); }, what);
  }
}

inline void broadcast(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kBroadcast, comm);
  const int root = static_cast<int>(c.count) % comm.size();
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes, c.library, c.misalignment), other(bytes, c.library, c.misalignment);
  Buffer& out = c.in_place ? in : other;
  if (comm.rank() == root) fill(in, 0, c.count, c.type, c.op, root);
  const void* from = comm.rank() == root ? in.data() : nullptr;
  const Status status =
      comm.broadcast(from, out.data(), c.count, c.type, root, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  check(
      out, 0, c.count, c.type, [&](size_t i) { return contribution(root, i, c.op); }, what);
}

inline void reduce(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kReduce, comm);
  const int root = static_cast<int>(c.count + 1) % comm.size();
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes, c.library, c.misalignment), other(bytes, c.library, c.misalignment);
  Buffer& out = c.in_place ? in : other;
  fill(in, 0, c.count, c.type, c.op, comm.rank());
  const bool writes = comm.rank() == root;
  const Status status = comm.reduce(in.data(), writes ? out.data() : nullptr, c.count, c.type, root,
                                    c.op, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  if (writes) {
    check(
        out, 0, c.count, c.type, [&](size_t i) { return expected(comm.size(), i, c.op, c.type); },
        what);
  }
  if (writes && c.in_place) return;
  check(
      in, 0, c.count, c.type, [&](size_t i) { return contribution(comm.rank(), i, c.op); },
      what + ": input");
}

inline void gather(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kGather, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const int root = static_cast<int>(c.count + 2) % comm.size();
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes, c.library, c.misalignment), out(bytes * n, c.library, c.misalignment);
  fill(in, 0, c.count, c.type, c.op, comm.rank());
  const bool writes = comm.rank() == root, in_place = writes && c.in_place;
  if (in_place) fill(out, r * c.count, c.count, c.type, c.op, comm.rank());
  const void* from = in_place ? out.data() + r * bytes : in.data();
  const Status status = comm.gather(from, writes ? out.data() : nullptr, c.count, c.type, root,
                                    {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  for (size_t rank = 0; writes && rank < n; ++rank) {
    check(
        out, rank * c.count, c.count, c.type,
        [&](size_t i) { return contribution(static_cast<int>(rank), i, c.op); }, what);
  }
}

inline void scatter(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kScatter, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const int root = static_cast<int>(c.count + 3) % comm.size();
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes * n, c.library, c.misalignment), out(bytes, c.library, c.misalignment);
  const bool reads = comm.rank() == root, in_place = reads && c.in_place;
  if (reads) fill(in, 0, c.count * n, c.type, c.op, root);
  unsigned char* to = in_place ? in.data() + r * bytes : out.data();
  const Status status = comm.scatter(reads ? in.data() : nullptr, to, c.count, c.type, root,
                                     {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  if (in_place && bytes > 0) std::memcpy(out.data(), to, bytes);
  check(
      out, 0, c.count, c.type, [&](size_t i) { return contribution(root, r * c.count + i, c.op); },
      what);
}

inline void all_to_all(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kAllToAll, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const size_t bytes = c.count * size_of(c.type);
  Buffer in(bytes * n, c.library, c.misalignment), other(bytes * n, c.library, c.misalignment);
  // The direct one cannot be done in place, and says so.
  const bool safe = c.algorithm == Algorithm::kAuto ||
                    algorithms::is_in_place_safe(Collective::kAllToAll, c.algorithm);
  const bool in_place = c.in_place && safe;
  Buffer& out = in_place ? in : other;
  fill(in, 0, c.count * n, c.type, c.op, comm.rank());
  const Status status =
      comm.all_to_all(in.data(), out.data(), c.count, c.type, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  for (size_t rank = 0; rank < n; ++rank) {
    check(
        out, rank * c.count, c.count, c.type,
        [&](size_t i) { return contribution(static_cast<int>(rank), r * c.count + i, c.op); },
        what);
  }
}

// Blocks of about `count` elements, some of them empty; what rank `from` has for rank `to`.
inline size_t block(size_t count, size_t from, size_t to) {
  const size_t kind = (from * 3 + to * 5 + 1) % 4;
  return kind == 1 ? 0 : count + kind;
}

struct Blocks {
  std::vector<size_t> counts, offsets;
  size_t all = 0;  // elements from the first to the end of the last, gaps included
};

// One after the other, or with gaps and the last rank's block first; then offsets must be given.
inline Blocks blocks(int size, bool apart, const std::function<size_t(size_t)>& count) {
  const auto n = static_cast<size_t>(size);
  Blocks b{.counts = std::vector<size_t>(n), .offsets = std::vector<size_t>(n)};
  for (size_t k = 0; k < n; ++k) {
    const size_t r = apart ? n - 1 - k : k;
    b.counts[r] = count(r);
    b.offsets[r] = b.all;
    b.all += b.counts[r] + (apart ? r % 2 : 0);
  }
  return b;
}

// The offsets as the caller passes them: none where blocks lie one after the other.
inline std::span<const size_t> offsets(const Blocks& b, bool apart) {
  return apart ? std::span<const size_t>(b.offsets) : std::span<const size_t>();
}

inline void all_gather_v(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kAllGatherV, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const bool apart = c.count % 2 == 1;
  const Blocks b = blocks(comm.size(), apart, [&](size_t k) { return block(c.count, k, 0); });
  const size_t element = size_of(c.type);
  Buffer in(b.counts[r] * element, c.library, c.misalignment);
  Buffer out(b.all * element, c.library, c.misalignment);
  fill(in, 0, b.counts[r], c.type, c.op, comm.rank());
  if (c.in_place) fill(out, b.offsets[r], b.counts[r], c.type, c.op, comm.rank());
  const void* from = c.in_place ? out.data() + b.offsets[r] * element : in.data();
  const Status status = comm.all_gather_v(from, out.data(), b.counts, offsets(b, apart), c.type,
                                          {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  for (size_t rank = 0; rank < n; ++rank) {
    check(
        out, b.offsets[rank], b.counts[rank], c.type,
        [&](size_t i) { return contribution(static_cast<int>(rank), i, c.op); }, what);
  }
}

inline void reduce_scatter_v(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kReduceScatterV, comm);
  const auto r = static_cast<size_t>(comm.rank());
  const bool apart = c.count % 2 == 0;
  const Blocks b = blocks(comm.size(), apart, [&](size_t k) { return block(c.count, 0, k); });
  const size_t element = size_of(c.type), bytes = b.counts[r] * element;
  Buffer in(b.all * element, c.library, c.misalignment), out(bytes, c.library, c.misalignment);
  fill(in, 0, b.all, c.type, c.op, comm.rank());
  unsigned char* to = c.in_place ? in.data() + b.offsets[r] * element : out.data();
  const Status status = comm.reduce_scatter_v(in.data(), to, b.counts, offsets(b, apart), c.type,
                                              c.op, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  if (c.in_place && bytes > 0) std::memcpy(out.data(), to, bytes);
  check(
      out, 0, b.counts[r], c.type,
      [&](size_t i) { return expected(comm.size(), b.offsets[r] + i, c.op, c.type); }, what);
}

inline void all_to_all_v(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kAllToAllV, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const bool apart = c.count % 2 == 1;
  const auto in_blocks = [&](size_t rank) {
    return blocks(comm.size(), apart, [&](size_t to) { return block(c.count, rank, to); });
  };
  const Blocks ins = in_blocks(r);
  const Blocks outs =
      blocks(comm.size(), !apart, [&](size_t from) { return block(c.count, from, r); });
  const size_t element = size_of(c.type);
  Buffer in(ins.all * element, c.library, c.misalignment);
  Buffer out(outs.all * element, c.library, c.misalignment);
  fill(in, 0, ins.all, c.type, c.op, comm.rank());
  const Status status =
      comm.all_to_all_v(in.data(), ins.counts, offsets(ins, apart), out.data(), outs.counts,
                        offsets(outs, !apart), c.type, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  for (size_t from = 0; from < n; ++from) {
    const size_t first = in_blocks(from).offsets[r];
    check(
        out, outs.offsets[from], outs.counts[from], c.type,
        [&](size_t i) { return contribution(static_cast<int>(from), first + i, c.op); }, what);
  }
}

inline void gather_v(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kGatherV, comm);
  const auto n = static_cast<size_t>(comm.size()), r = static_cast<size_t>(comm.rank());
  const int root = static_cast<int>(c.count + 1) % comm.size();
  const bool apart = c.count % 2 == 1;
  const Blocks b = blocks(comm.size(), apart, [&](size_t k) { return block(c.count, k, 0); });
  const size_t element = size_of(c.type);
  Buffer in(b.counts[r] * element, c.library, c.misalignment);
  Buffer out(b.all * element, c.library, c.misalignment);
  const bool writes = comm.rank() == root, in_place = writes && c.in_place;
  fill(in_place ? out : in, in_place ? b.offsets[r] : 0, b.counts[r], c.type, c.op, comm.rank());
  const void* from = in_place ? out.data() + b.offsets[r] * element : in.data();
  const Status status = comm.gather_v(from, writes ? out.data() : nullptr, b.counts,
                                      offsets(b, apart), c.type, root, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  for (size_t rank = 0; writes && rank < n; ++rank) {
    check(
        out, b.offsets[rank], b.counts[rank], c.type,
        [&](size_t i) { return contribution(static_cast<int>(rank), i, c.op); }, what);
  }
}

inline void scatter_v(Communicator& comm, const Case& c) {
  const std::string what = c.to_string(Collective::kScatterV, comm);
  const auto r = static_cast<size_t>(comm.rank());
  const int root = static_cast<int>(c.count + 2) % comm.size();
  const bool apart = c.count % 2 == 0;
  const Blocks b = blocks(comm.size(), apart, [&](size_t k) { return block(c.count, 0, k); });
  const size_t element = size_of(c.type), bytes = b.counts[r] * element;
  Buffer in(b.all * element, c.library, c.misalignment), out(bytes, c.library, c.misalignment);
  const bool reads = comm.rank() == root, in_place = reads && c.in_place;
  if (reads) fill(in, 0, b.all, c.type, c.op, root);
  unsigned char* to = in_place ? in.data() + b.offsets[r] * element : out.data();
  const Status status = comm.scatter_v(reads ? in.data() : nullptr, to, b.counts, offsets(b, apart),
                                       c.type, root, {.algorithm = c.algorithm});
  if (!carried_out(status, c, what)) return;
  if (in_place && bytes > 0) std::memcpy(out.data(), to, bytes);
  check(
      out, 0, b.counts[r], c.type,
      [&](size_t i) { return contribution(root, b.offsets[r] + i, c.op); }, what);
}

// What an exclusive scan leaves on rank 0, not taken from the library.
template <class T>
std::vector<unsigned char> identity_of(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  T value{};
  if (op == ReduceOp::kProd) value = T{1};
  if (op == ReduceOp::kMin) value = Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::kMax) value = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  if (op == ReduceOp::kBand) value = static_cast<T>(-1);
  std::vector<unsigned char> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
inline std::vector<unsigned char> identity_of(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat64:
      return identity_of<double>(op);
    case DataType::kInt8:
      return identity_of<int8_t>(op);
    case DataType::kInt16:
      return identity_of<int16_t>(op);
    case DataType::kInt32:
      return identity_of<int32_t>(op);
    case DataType::kInt64:
      return identity_of<int64_t>(op);
    case DataType::kUint8:
      return identity_of<uint8_t>(op);
    case DataType::kUint16:
      return identity_of<uint16_t>(op);
    case DataType::kUint32:
      return identity_of<uint32_t>(op);
    case DataType::kUint64:
      return identity_of<uint64_t>(op);
    default:
      break;
  }
  std::vector<unsigned char> bytes = identity_of<float>(op);
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  store(bytes.data(), type, static_cast<double>(value));
  bytes.resize(size_of(type));
  return bytes;
}

inline void scan(Communicator& comm, const Case& c, Collective collective) {
  const std::string what = c.to_string(collective, comm);
  const bool inclusive = collective == Collective::kInclusiveScan;
  const size_t element = size_of(c.type), bytes = c.count * element;
  Buffer in(bytes, c.library, c.misalignment), other(bytes, c.library, c.misalignment);
  Buffer& out = c.in_place ? in : other;
  fill(in, 0, c.count, c.type, c.op, comm.rank());
  const CallOptions options{.algorithm = c.algorithm};
  const Status status =
      inclusive ? comm.inclusive_scan(in.data(), out.data(), c.count, c.type, c.op, options)
                : comm.exclusive_scan(in.data(), out.data(), c.count, c.type, c.op, options);
  if (c.op == ReduceOp::kAvg) {
    expect(status.code() == Code::kInvalidArgument, what + ": " + status.to_string());
    return;
  }
  if (!carried_out(status, c, what)) return;
  const int folded = comm.rank() + (inclusive ? 1 : 0);
  if (folded > 0) {
    check(
        out, 0, c.count, c.type, [&](size_t i) { return expected(folded, i, c.op, c.type); }, what);
  } else {
    const std::vector<unsigned char> identity = identity_of(c.type, c.op);
    for (size_t i = 0; i < c.count; ++i) {
      expect(std::memcmp(out.data() + i * element, identity.data(), element) == 0,
             what + ": not the identity");
    }
    out.check_guards(what);
  }
  if (c.in_place) return;
  check(
      in, 0, c.count, c.type, [&](size_t i) { return contribution(comm.rank(), i, c.op); },
      what + ": input");
}

inline void inclusive_scan(Communicator& comm, const Case& c) {
  scan(comm, c, Collective::kInclusiveScan);
}
inline void exclusive_scan(Communicator& comm, const Case& c) {
  scan(comm, c, Collective::kExclusiveScan);
}

struct NamedCall {
  Collective collective;
  void (*make)(Communicator&, const Case&);
};
inline constexpr NamedCall kCalls[] = {
    {Collective::kAllReduce, all_reduce},
    {Collective::kReduceScatter, reduce_scatter},
    {Collective::kAllGather, all_gather},
    {Collective::kBroadcast, broadcast},
    {Collective::kReduce, reduce},
    {Collective::kGather, gather},
    {Collective::kScatter, scatter},
    {Collective::kAllToAll, all_to_all},
    {Collective::kAllGatherV, all_gather_v},
    {Collective::kReduceScatterV, reduce_scatter_v},
    {Collective::kAllToAllV, all_to_all_v},
    {Collective::kGatherV, gather_v},
    {Collective::kScatterV, scatter_v},
    {Collective::kInclusiveScan, inclusive_scan},
    {Collective::kExclusiveScan, exclusive_scan},
};
static_assert(std::size(kCalls) == kCollectives - 1, "all but the barrier");

enum class Which { kAll, kReductions };

inline void everything(Communicator& comm, const Case& c, Which which = Which::kAll) {
  for (const NamedCall& call : kCalls) {
    if (which == Which::kReductions && !form_of(call.collective).reduces) continue;
    // An algorithm that does not do the collective, or not on one host, is refused before the count
    // matters.
    if (c.algorithm != Algorithm::kAuto && c.count > 1 &&
        (algorithms::find(call.collective, c.algorithm) == nullptr ||
         algorithms::traits_of(c.algorithm).needs.hosts)) {
      continue;
    }
    call.make(comm, c);
  }
}

}  // namespace rondo::testing::calls
