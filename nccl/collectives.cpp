// NCCL's collectives and messages: each makes an Operation of its arguments.
#include "nccl/group.hpp"
#include "nccl/scaled_sum.hpp"
#include "nccl/settings.hpp"

namespace {

using namespace rondo::nccl;  // NOLINT: for the whole file
using rondo::Collective;
using rondo::Result;

/// What all calls have. A message's peer is its root; `op`: for collectives that reduce.
struct GivenCall {
  const char* call;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  ncclComm_t comm;
  ncclStream_t stream;
  const ncclCollConfig_t* config = nullptr;
};

Result<NcclCall> read(const GivenCall& g, NcclCall::CallKind kind, Collective collective) {
  Comm comm = RONDO_TRY(find_ready(g.comm, g.call));
  const rondo::DataType type = RONDO_TRY(read_type(g.type, g.call));
  rondo::CallOptions options = RONDO_TRY(read_config(g.config, g.call));
  if (comm->device >= 0) options.stream = g.stream;
  ReadOperator op{rondo::ReduceOp::kSum};
  if (kind == NcclCall::CallKind::kCollective && rondo::internal::form_of(collective).reduces) {
    op = RONDO_TRY(read_operator(g.op, type, *comm, options.stream, g.call));
  }
  options.factor = op.factor;
  return NcclCall{std::move(comm),
                  g.call,
                  kind,
                  {collective, g.in, g.out, g.count, type, op.op, g.root},
                  options};
}

ncclResult_t collective(Collective which, const GivenCall& given) {
  return guarded([&] { return submit(read(given, NcclCall::CallKind::kCollective, which)); });
}

ncclResult_t message(NcclCall::CallKind kind, const GivenCall& given) {
  return guarded([&] { return submit(read(given, kind, Collective::kBarrier)); });
}

}  // namespace

ncclResult_t ncclAllReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config) {
  return collective(Collective::kAllReduce, {.call = "ncclAllReduce",
                                             .in = in,
                                             .out = out,
                                             .count = count,
                                             .type = type,
                                             .op = op,
                                             .comm = comm,
                                             .stream = stream,
                                             .config = config});
}

ncclResult_t ncclReduceScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream,
                                     const ncclCollConfig_t* config) {
  return collective(Collective::kReduceScatter, {.call = "ncclReduceScatter",
                                                 .in = in,
                                                 .out = out,
                                                 .count = count,
                                                 .type = type,
                                                 .op = op,
                                                 .comm = comm,
                                                 .stream = stream,
                                                 .config = config});
}

ncclResult_t ncclReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                              ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream,
                              const ncclCollConfig_t* config) {
  return collective(Collective::kReduce, {.call = "ncclReduce",
                                          .in = in,
                                          .out = out,
                                          .count = count,
                                          .type = type,
                                          .op = op,
                                          .root = root,
                                          .comm = comm,
                                          .stream = stream,
                                          .config = config});
}

ncclResult_t ncclBroadcastConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                 int root, ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config) {
  return collective(Collective::kBroadcast, {.call = "ncclBroadcast",
                                             .in = in,
                                             .out = out,
                                             .count = count,
                                             .type = type,
                                             .root = root,
                                             .comm = comm,
                                             .stream = stream,
                                             .config = config});
}

ncclResult_t ncclAllGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config) {
  return collective(Collective::kAllGather, {.call = "ncclAllGather",
                                             .in = in,
                                             .out = out,
                                             .count = count,
                                             .type = type,
                                             .comm = comm,
                                             .stream = stream,
                                             .config = config});
}

ncclResult_t ncclAlltoAllConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                ncclComm_t comm, ncclStream_t stream,
                                const ncclCollConfig_t* config) {
  return collective(Collective::kAllToAll, {.call = "ncclAlltoAll",
                                            .in = in,
                                            .out = out,
                                            .count = count,
                                            .type = type,
                                            .comm = comm,
                                            .stream = stream,
                                            .config = config});
}

ncclResult_t ncclGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                              int root, ncclComm_t comm, ncclStream_t stream,
                              const ncclCollConfig_t* config) {
  return collective(Collective::kGather, {.call = "ncclGather",
                                          .in = in,
                                          .out = out,
                                          .count = count,
                                          .type = type,
                                          .root = root,
                                          .comm = comm,
                                          .stream = stream,
                                          .config = config});
}

ncclResult_t ncclScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                               int root, ncclComm_t comm, ncclStream_t stream,
                               const ncclCollConfig_t* config) {
  return collective(Collective::kScatter, {.call = "ncclScatter",
                                           .in = in,
                                           .out = out,
                                           .count = count,
                                           .type = type,
                                           .root = root,
                                           .comm = comm,
                                           .stream = stream,
                                           .config = config});
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return ncclAllReduceConfig(in, out, count, type, op, comm, stream, nullptr);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  return ncclReduceScatterConfig(in, out, count, type, op, comm, stream, nullptr);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream) {
  return ncclReduceConfig(in, out, count, type, op, root, comm, stream, nullptr);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, ncclStream_t stream) {
  return ncclBroadcastConfig(in, out, count, type, root, comm, stream, nullptr);
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       ncclStream_t stream) {
  return ncclBroadcastConfig(buffer, buffer, count, type, root, comm, stream, nullptr);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, ncclStream_t stream) {
  return ncclAllGatherConfig(in, out, count, type, comm, stream, nullptr);
}
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, ncclStream_t stream) {
  return ncclAlltoAllConfig(in, out, count, type, comm, stream, nullptr);
}
ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, ncclStream_t stream) {
  return ncclGatherConfig(in, out, count, type, root, comm, stream, nullptr);
}
ncclResult_t ncclScatter(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, ncclStream_t stream) {
  return ncclScatterConfig(in, out, count, type, root, comm, stream, nullptr);
}

ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, ncclStream_t stream) {
  return message(NcclCall::CallKind::kSend, {.call = "ncclSend",
                                             .in = buffer,
                                             .out = nullptr,
                                             .count = count,
                                             .type = type,
                                             .root = peer,
                                             .comm = comm,
                                             .stream = stream});
}

ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      ncclStream_t stream) {
  if (peer < 0) peer = -1;  // rondo's recv from any rank has a negative number
  return message(NcclCall::CallKind::kRecv, {.call = "ncclRecv",
                                             .in = nullptr,
                                             .out = buffer,
                                             .count = count,
                                             .type = type,
                                             .root = peer,
                                             .comm = comm,
                                             .stream = stream});
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclAllReduce")]] decltype(ncclAllReduce) pncclAllReduce;
[[gnu::alias("ncclAllReduceConfig")]] decltype(ncclAllReduceConfig) pncclAllReduceConfig;
[[gnu::alias("ncclReduceScatter")]] decltype(ncclReduceScatter) pncclReduceScatter;
[[gnu::alias(
    "ncclReduceScatterConfig")]] decltype(ncclReduceScatterConfig) pncclReduceScatterConfig;
[[gnu::alias("ncclReduce")]] decltype(ncclReduce) pncclReduce;
[[gnu::alias("ncclReduceConfig")]] decltype(ncclReduceConfig) pncclReduceConfig;
[[gnu::alias("ncclBroadcast")]] decltype(ncclBroadcast) pncclBroadcast;
[[gnu::alias("ncclBroadcastConfig")]] decltype(ncclBroadcastConfig) pncclBroadcastConfig;
[[gnu::alias("ncclAllGather")]] decltype(ncclAllGather) pncclAllGather;
[[gnu::alias("ncclAllGatherConfig")]] decltype(ncclAllGatherConfig) pncclAllGatherConfig;
[[gnu::alias("ncclAlltoAll")]] decltype(ncclAlltoAll) pncclAlltoAll;
[[gnu::alias("ncclAlltoAllConfig")]] decltype(ncclAlltoAllConfig) pncclAlltoAllConfig;
[[gnu::alias("ncclGather")]] decltype(ncclGather) pncclGather;
[[gnu::alias("ncclGatherConfig")]] decltype(ncclGatherConfig) pncclGatherConfig;
[[gnu::alias("ncclScatter")]] decltype(ncclScatter) pncclScatter;
[[gnu::alias("ncclScatterConfig")]] decltype(ncclScatterConfig) pncclScatterConfig;
[[gnu::alias("ncclBcast")]] decltype(ncclBcast) pncclBcast;
[[gnu::alias("ncclSend")]] decltype(ncclSend) pncclSend;
[[gnu::alias("ncclRecv")]] decltype(ncclRecv) pncclRecv;
}
#pragma GCC visibility pop
