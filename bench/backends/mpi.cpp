// Calls MPI's collectives as any program does. What MPI lacks (half, bfloat16, averages) is
// refused, not emulated: an emulation would be measured in MPI's name.
#include "bench/backends/mpi.hpp"

#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/identity.hpp"

namespace rondo::bench {
namespace {

/// By DataType. MPI's logical type has logical operators only, so that kBool has none here.
MPI_Datatype type_of(DataType type) {
  static const MPI_Datatype none = MPI_DATATYPE_NULL;
  static const MPI_Datatype types[] = {MPI_FLOAT,   MPI_DOUBLE,   none,         none,
                                       MPI_INT32_T, MPI_INT64_T,  MPI_UINT8_T,  MPI_INT8_T,
                                       MPI_INT16_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T,
                                       none,        none,         none};
  static_assert(std::size(types) == kDataTypes && static_cast<int>(DataType::kUint64) == 11);
  return types[static_cast<size_t>(type)];
}

/// By ReduceOp.
MPI_Op op_of(ReduceOp op) {
  static const MPI_Op none = MPI_OP_NULL;
  static const MPI_Op ops[] = {MPI_SUM,  MPI_PROD, MPI_MIN,  MPI_MAX, none,
                               MPI_BAND, MPI_BOR,  MPI_BXOR, none};
  static_assert(std::size(ops) == kReduceOps && static_cast<int>(ReduceOp::kBxor) == 7);
  return ops[static_cast<size_t>(op)];
}

Status to_status(int code) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {Code::kSystem, std::string(text, static_cast<size_t>(length))};
}

/// "Open MPI 4.1.4", "MPICH 5.0.2": the first words and the first number of MPI's own sentence.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view sentence(text, static_cast<size_t>(length));
  const size_t number = std::min(sentence.find_first_of("0123456789"), sentence.size());
  const size_t end = std::min(sentence.find_first_not_of("0123456789.", number), sentence.size());
  const char* product = sentence.starts_with("Open MPI") ? "Open MPI "
                        : sentence.starts_with("MPICH")  ? "MPICH "
                                                         : "MPI ";
  return product + std::string(sentence.substr(number, end - number));
}

class MpiBackend final : public Backend {
 public:
  MpiBackend() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }

  std::string name() const override { return library_name(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status barrier() override { return to_status(MPI_Barrier(MPI_COMM_WORLD)); }

  Status supports(const CallShape& shape) const override {
    if (type_of(shape.type) == MPI_DATATYPE_NULL) {
      return {Code::kUnavailable, "MPI has no type for " + std::string(rondo::name(shape.type))};
    }
    if (reduces(shape.collective) && op_of(shape.op) == MPI_OP_NULL) {
      return {Code::kUnavailable, "MPI has no operator for " + std::string(rondo::name(shape.op))};
    }
    if (shape.count > INT_MAX) {
      return {Code::kUnavailable,
              std::to_string(shape.count) +
                  " elements are more than MPI's int counts: choose a smaller maximum with -e"};
    }
    return {};
  }

  Status run(const BackendCall& operation) override {
    const CallShape& shape = operation.shape;
    const int count = static_cast<int>(shape.count);
    const MPI_Datatype type = type_of(shape.type);
    const size_t bytes = shape.count * size_of(shape.type);
    const auto block = static_cast<size_t>(rank_) * bytes;
    const auto* in = static_cast<const std::byte*>(operation.in);
    auto* out = static_cast<std::byte*>(operation.out);
    if (is_varying(shape.collective)) return run_varying(operation);
    if (shape.collective == kSendRecv) {
      return to_status(MPI_Sendrecv(in, count, type, next_of(rank_, size_), 0, out, count, type,
                                    prev_of(rank_, size_), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    switch (shape.collective) {
      case Collective::kAllReduce:
        return to_status(MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, count, type,
                                       op_of(shape.op), MPI_COMM_WORLD));
      case Collective::kReduceScatter:
        return reduce_scatter(operation, in + block == out);
      case Collective::kAllGather:
        return to_status(MPI_Allgather(in == out + block ? MPI_IN_PLACE : in, count, type, out,
                                       count, type, MPI_COMM_WORLD));
      case Collective::kBroadcast:
        // MPI's broadcast is in place; out of place, the copy of the root's input belongs to the
        // operation
        if (rank_ == shape.root && in != out && bytes > 0) std::memcpy(out, in, bytes);
        return to_status(MPI_Bcast(out, count, type, shape.root, MPI_COMM_WORLD));
      case Collective::kReduce:
        return to_status(MPI_Reduce(in == out && rank_ == shape.root ? MPI_IN_PLACE : in, out,
                                    count, type, op_of(shape.op), shape.root, MPI_COMM_WORLD));
      case Collective::kGather:
        return to_status(MPI_Gather(in == out + block && rank_ == shape.root ? MPI_IN_PLACE : in,
                                    count, type, out, count, type, shape.root, MPI_COMM_WORLD));
      case Collective::kScatter:
        return to_status(MPI_Scatter(in, count, type,
                                     out == in + block && rank_ == shape.root ? MPI_IN_PLACE : out,
                                     count, type, shape.root, MPI_COMM_WORLD));
      case Collective::kAllToAll:
        return to_status(MPI_Alltoall(in == out ? MPI_IN_PLACE : in, count, type, out, count, type,
                                      MPI_COMM_WORLD));
      case Collective::kInclusiveScan:
        return to_status(MPI_Scan(in == out ? MPI_IN_PLACE : in, out, count, type, op_of(shape.op),
                                  MPI_COMM_WORLD));
      case Collective::kExclusiveScan:
        RONDO_TRY(to_status(MPI_Exscan(in == out ? MPI_IN_PLACE : in, out, count, type,
                                       op_of(shape.op), MPI_COMM_WORLD)));
        if (rank_ == 0) fill_identity(shape, out);
        return {};
      default:
        return barrier();
    }
  }

 private:
  /// MPI leaves rank 0's result undefined; to fill it as rondo does belongs to the operation.
  static void fill_identity(const CallShape& shape, std::byte* out) {
    const uint64_t identity = kernels::identity_bits(shape.type, shape.op);
    const size_t element = size_of(shape.type);
    for (size_t i = 0; i < shape.count; ++i) std::memcpy(out + i * element, &identity, element);
  }

  Status run_varying(const BackendCall& operation) {
    const CallShape& shape = operation.shape;
    const MPI_Datatype type = type_of(shape.type);
    if (laid_out_for_ != shape.count) {
      const std::vector<size_t> counts = block_counts(shape, rank_, size_);
      counts_.assign(counts.begin(), counts.end());
      offsets_.assign(counts_.size(), 0);
      std::partial_sum(counts_.begin(), counts_.end() - 1, offsets_.begin() + 1);
      laid_out_for_ = shape.count;
    }
    const auto own = static_cast<size_t>(rank_);
    const size_t block = static_cast<size_t>(offsets_[own]) * size_of(shape.type);
    const auto* in = static_cast<const std::byte*>(operation.in);
    auto* out = static_cast<std::byte*>(operation.out);
    switch (shape.collective) {
      case Collective::kAllGatherV:
        return to_status(MPI_Allgatherv(in == out + block ? MPI_IN_PLACE : in, counts_[own], type,
                                        out, counts_.data(), offsets_.data(), type,
                                        MPI_COMM_WORLD));
      case Collective::kAllToAllV:
        return to_status(MPI_Alltoallv(in, counts_.data(), offsets_.data(), type, out,
                                       counts_.data(), offsets_.data(), type, MPI_COMM_WORLD));
      case Collective::kGatherV:
        return to_status(MPI_Gatherv(in == out + block && rank_ == shape.root ? MPI_IN_PLACE : in,
                                     counts_[own], type, out, counts_.data(), offsets_.data(), type,
                                     shape.root, MPI_COMM_WORLD));
      case Collective::kScatterV:
        return to_status(MPI_Scatterv(in, counts_.data(), offsets_.data(), type,
                                      out == in + block && rank_ == shape.root ? MPI_IN_PLACE : out,
                                      counts_[own], type, shape.root, MPI_COMM_WORLD));
      default:
        break;
    }
    if (out != in + block) {
      return to_status(
          MPI_Reduce_scatter(in, out, counts_.data(), type, op_of(shape.op), MPI_COMM_WORLD));
    }
    void* whole = const_cast<std::byte*>(in);
    RONDO_TRY(to_status(MPI_Reduce_scatter(MPI_IN_PLACE, whole, counts_.data(), type,
                                           op_of(shape.op), MPI_COMM_WORLD)));
    if (whole != out)
      std::memcpy(out, whole, static_cast<size_t>(counts_[own]) * size_of(shape.type));
    return {};
  }

  /// In place MPI leaves the result in the first block; the harness expects it in block `rank`.
  Status reduce_scatter(const BackendCall& operation, bool in_place) {
    const CallShape& shape = operation.shape;
    const int count = static_cast<int>(shape.count);
    if (!in_place) {
      return to_status(MPI_Reduce_scatter_block(operation.in, operation.out, count,
                                                type_of(shape.type), op_of(shape.op),
                                                MPI_COMM_WORLD));
    }
    void* whole = const_cast<void*>(operation.in);
    RONDO_TRY(to_status(MPI_Reduce_scatter_block(MPI_IN_PLACE, whole, count, type_of(shape.type),
                                                 op_of(shape.op), MPI_COMM_WORLD)));
    if (whole != operation.out)
      std::memcpy(operation.out, whole, shape.count * size_of(shape.type));
    return {};
  }

  int rank_ = 0;
  int size_ = 1;
  // Of the last _v collective; one is measured at a time.
  size_t laid_out_for_ = ~size_t{0};
  std::vector<int> counts_, offsets_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend() { return std::make_unique<MpiBackend>(); }

}  // namespace rondo::bench
