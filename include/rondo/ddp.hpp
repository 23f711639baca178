// Data parallelism for a training loop of your own: every rank holds the whole model and works on
// its own samples; gradients are averaged over the ranks while backward still computes others.
// There is no autograd here: you say when a gradient is final. trainer/examples/toy_ddp.cpp shows
// a whole loop; trainer/README.md sets the names beside those of PyTorch's DistributedDataParallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"

#pragma GCC visibility push(default)  // what is declared here, librondo.so exports
namespace rondo {

/// One rank's samples of an epoch, as torch.utils.data.DistributedSampler chooses them: all samples
/// in one order, chosen by seed and epoch, the same on every rank; rank r has entries r, r + N,
/// r + 2N, ... The order is rondo's Permutation, not the one of torch's generator.
///
/// Progress is counted in global samples, so that an epoch can go on with another number of ranks:
/// what is left is then cut anew, behind what was consumed.
///
/// Thread-compatible; holds a few numbers. Communicates with nobody.
class DistributedSampler {
 public:
  /// What happens to samples that N ranks cannot share equally.
  enum class Tail {
    kPad,   // the order begins again from its front, so that every rank has as many (torch's
            // default): some samples count twice
    kDrop,  // left out, other ones in each epoch (torch's drop_last)
    kKeep,  // the first ranks have one more: for evaluation, where each sample must count once
  };
  struct Options {
    uint64_t samples;  // at most 2^62
    uint64_t ranks = 1, rank = 0;
    bool shuffle = true;  // else in the data's order
    uint64_t seed = 0;
    Tail tail = Tail::kPad;
  };

  /// At the beginning of epoch 0. REQUIRES: rank < ranks, the same other options on every rank.
  explicit DistributedSampler(const Options& options);

  /// Turns to an epoch of which `consumed` samples are behind all ranks together. Without it every
  /// epoch would have the order of the first.
  void set_epoch(uint64_t epoch, uint64_t consumed = 0);
  uint64_t epoch() const { return epoch_; }

  /// This rank's samples that are left, and the least and the most that any rank has left.
  uint64_t size() const;
  uint64_t least() const { return left() / options_.ranks; }
  uint64_t most() const;
  /// Position in the data of this rank's i-th sample that is left. REQUIRES: i < size().
  uint64_t index(uint64_t i) const;

  /// What to hand to set_epoch() once every rank is through `count` more of its samples. Padding is
  /// not counted.
  uint64_t consumed_after(uint64_t count) const;

 private:
  uint64_t left() const { return options_.samples - consumed_; }  // on all ranks, without padding

  Options options_;
  uint64_t epoch_ = 0, consumed_ = 0;
};

/// One tensor of a model.
struct DdpTensor {
  std::string name;
  std::vector<size_t> shape;  // row-major
  /// Some steps do not use it on some ranks: then gradient_skipped() is called instead of
  /// gradient_ready(). Costs one small all-reduce per step.
  bool may_skip = false;
  /// No parameter, but a second gradient of the tensor with that index, which is added to the first
  /// when both are reduced: the lookup's share of an embedding that is tied to the output layer.
  /// Such tensors come last.
  int adds_to = -1;

  size_t count() const;  // elements
};

/// What a communication hook is given: one bucket whose gradients are final on this rank.
struct GradientBucket {
  size_t index;
  bool last;
  void* data;  // count elements; in: this rank's sum; out: the scaled sum over the ranks
  size_t count;
  DataType type;
  double factor;  // what this rank's gradients are multiplied by before they are summed
  /// With DdpOptions::shard: what each rank owns of it, as reduce_scatter_v wants it; `data` has to
  /// be right on [own_offset, own_offset + own_count) only. Without: empty, and all of it.
  std::span<const size_t> shard_counts, shard_offsets;
  size_t own_offset, own_count;
};

/// How a bucket is reduced, instead of one all-reduce in the gradients' own type. Called by the
/// thread that trains, for every bucket in the same order on every rank; touched rows alone (see
/// DdpOptions::Rows) travel without it. One hook serves one DistributedDataParallel.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;
  virtual std::string name() const = 0;
  /// Starts it. The bucket's memory is the hook's until finish().
  virtual Work start(Communicator& communicator, const GradientBucket& bucket) = 0;
  /// That Work has ended well: writes the result to bucket.data. Later buckets may still travel, and
  /// fail.
  virtual void finish(const GradientBucket& bucket) = 0;
};

/// Gradients travel as bfloat16 or float16: half the bytes. Each is scaled, then rounded once, and
/// summed as all_reduce or, with shards, reduce_scatter sums that type. (DDP's bf16_compress_hook
/// and fp16_compress_hook.) REQUIRES: kBFloat16 or kFloat16.
std::shared_ptr<CommunicationHook> make_compression_hook(DataType wire);

struct DdpOptions {
  DataType type = DataType::kFloat32;  // of parameters and gradients: kFloat32 or kFloat64
  /// MiB of gradients per all-reduce; the first and the last bucket are smaller (1 MiB). 0: one for
  /// every tensor. A tensor larger than that is split.
  double bucket_cap_mb = 25;
  /// False: nothing is sent before finish(), to measure what overlap is worth.
  bool overlap = true;
  /// kLossTerms: the mean over all ranks' loss terms, so that unequal batches weigh what they hold.
  /// kRanks: the mean of the ranks' means, as PyTorch's DDP.
  enum class Average { kLossTerms, kRanks } average = Average::kLossTerms;
  /// Whether ranks may run out of data before others: they go on with empty batches. False: that
  /// is an error on every rank.
  bool join = false;
  /// begin() broadcasts the buffers from rank 0.
  bool broadcast_buffers = true;
  /// How the gradients of `adds_to` tensors travel: whole, or as the rows that touches_rows()
  /// named.
  enum class Rows { kFewerBytes, kWhole, kTouched } rows = Rows::kFewerBytes;
  std::shared_ptr<CommunicationHook> hook = nullptr;
  /// ZeRO stage 1: each rank updates only a share of the parameters, own_ranges(), and so keeps the
  /// optimizer's state of that share alone. Gradients are reduce-scattered, so that after finish()
  /// only those of the own ranges are averages; parameters are gathered afterwards.
  bool shard = false;
};

/// Shards are cut between tensors, and inside of one only a multiple of so many elements from its
/// first: what is computed over blocks of that size (a norm) has every block on one rank.
inline constexpr size_t kDdpShardUnit = 4096;

/// Elements [begin, end) of the flat storages.
struct DdpRange {
  size_t begin, end;

  size_t count() const { return end - begin; }
  bool operator==(const DdpRange&) const = default;
};

/// What each rank tells the others at the start of a step.
struct DdpHeader {
  uint64_t loss_terms = 0;   // of this rank in this step; 0: an empty batch
  bool end_of_data = false;  // no batch follows in this epoch
  uint64_t epoch = 0;
  uint64_t sample_hash = 0;  // of the samples' identities; 0: unknown
};

/// What all ranks have told.
struct DdpStep {
  uint64_t loss_terms = 0;   // of all ranks
  int active_ranks = 0;      // with loss terms
  bool epoch_ended = false;  // no rank has another batch
};

/// One bucket in the last finished step; CLOCK_MONOTONIC nanoseconds.
struct DdpBucketTimes {
  int64_t ready_ns;  // its last gradient was final
  Work::Times work;
};

/// Gradients that lie together and travel together.
struct DdpBucket {
  struct Piece {
    size_t tensor, begin, end;  // elements of the tensor
  };
  std::vector<Piece> pieces;
  size_t offset, count;  // elements of the flat storage, padding included
};

/// Owns the parameters, gradients and buffers of one rank, flat, in the order of the tensors, which
/// should be that in which backward finishes gradients. One thread at a time; nothing else may use
/// the communicator between begin() and finish() except in the same order on every rank.
///
/// Gradients are those of the SUM of this rank's loss terms, not of their mean: rondo divides by
/// the terms of all ranks (or, with kRanks, by this rank's and the number of ranks). There is no
/// zero_grad(): after finish() they hold the average, so the first micro-batch of a step writes
/// them all, zeros for an empty batch, and the others add. Destroyed in the middle of a step, it
/// aborts the communicator and waits until nothing uses its memory.
///
///   ddp.replicate();   // once, when rank 0's parameters are set
///   ddp.begin({...});
///   { auto quiet = ddp.no_sync(); ... gradient_ready() for all tensors ... }   // K - 1 times
///   ... gradient_ready() for all tensors ...                                    // once
///   ddp.finish();   // gradients are averaged: update the parameters
///
/// or, where a bucket's update needs no other bucket,
///
///   ddp.finish([&](size_t bucket) { ... update own_range(bucket) ... });
///
/// With DdpOptions::shard the update is, for each bucket from the last to the first:
///
///   ... update own_range(bucket) ...
///   ddp.gather_parameters(bucket);    // starts to travel while the next bucket is updated
///
/// and wait_parameters() before the next forward. The last bucket holds what forward uses first.
class DistributedDataParallel {
 public:
  /// Compares the tensors and options of all ranks: kMismatch on every rank names the first
  /// difference, both ranks and both values. Allocates; kResourceExhausted. `communicator` is
  /// borrowed. Everything starts as zeros.
  static Result<DistributedDataParallel> create(Communicator& communicator,
                                                std::vector<DdpTensor> tensors,
                                                std::vector<DdpTensor> buffers = {},
                                                const DdpOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;

  const std::vector<DdpTensor>& tensors() const;
  const std::vector<DdpTensor>& buffers() const;
  DataType type() const;
  Communicator& communicator();
  /// Element `offset(i)` of the flat storages is the first of tensor i. Parameters end before the
  /// first `adds_to` tensor.
  size_t offset(size_t tensor) const;
  size_t parameter_elements() const;  // of the flat storages, padding (always zero) included
  size_t gradient_elements() const;
  void* parameters();
  void* gradients();
  void* buffer(size_t index);
  /// T must be the options' type.
  template <class T>
  T* parameter(size_t tensor) {
    return static_cast<T*>(parameters()) + offset(tensor);
  }
  template <class T>
  T* gradient(size_t tensor) {
    return static_cast<T*>(gradients()) + offset(tensor);
  }

  /// Every rank's parameters and buffers become rank 0's: after create(), when rank 0 has set them,
  /// and before the first begin(), which refuses else. load() does it too.
  Status replicate();

  /// Every rank's buffers become rank 0's, as at begin(): before they are used elsewhere, for
  /// validation say. Nothing with `broadcast_buffers` off.
  Status broadcast_buffers();

  /// Starts a step, and the exchange of headers. Refused, which ends the others too, without
  /// replicate() or before the last step's finish() (but for one without any loss terms).
  Status begin(const DdpHeader& mine);
  /// Waits for all headers. Needed only by who must know: finish() asks too. An error, on every
  /// rank, when some are out of data and others not and `join` is off, or when they are in
  /// different epochs.
  Result<DdpStep> headers();

  /// While it lives gradients are only accumulated.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(bool& quiet) : quiet_(quiet), before_(quiet) { quiet_ = true; }
    ~NoSync() { quiet_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& quiet_;
    const bool before_;
  };
  NoSync no_sync();

  /// The first `count` elements of this tensor's gradient are final (in this micro-batch). Twice
  /// for the same elements without no_sync() is an error, on every rank, in this step.
  void gradient_ready(size_t tensor, size_t count);
  void gradient_ready(size_t tensor);
  /// Instead: this micro-batch does not use the tensor and has not touched its gradient. Of
  /// one that is not declared may_skip this is an error, on every rank, in this step.
  void gradient_skipped(size_t tensor);
  /// Rows of an `adds_to` tensor's gradient that this step makes different from zero, all of them,
  /// in any order; before the last backward pass begins.
  void touches_rows(size_t tensor, std::span<const int32_t> rows);

  /// Sends what is left and waits. ok: gradients are the average over all ranks, on every rank the
  /// same bits. Otherwise the first failure, after everything has ended; tensors without a gradient
  /// are named.
  ///
  /// `reduced` is called, by this thread, once for each bucket when its gradients are the average,
  /// while later ones still travel or other ranks still compute: to update own_range(bucket) in
  /// that time. In the order of the buckets, but those behind what is added to them. What needs all
  /// gradients first, as clipping does, cannot be done so. After a failure some buckets were
  /// reported and others not. Without overlap, and with tensors that may_skip, of which used() then
  /// knows, it is called for all at the end. It must not call begin() or finish(). What it throws
  /// leaves the step unfinished: destroy this, which tells the other ranks.
  Status finish(const std::function<void(size_t bucket)>& reduced = {});
  /// Whether any rank used this tensor in the last finished step: else leave its parameter, and
  /// what the optimizer keeps of it, as they are.
  bool used(size_t tensor) const;

  /// Rank 0 writes parameters, buffers and `state` into one safetensors file, which replaces the
  /// old one in one step: a crash leaves either. `state`: by name, arrays of parameter_elements()
  /// that are laid out as the parameters are (an optimizer's); with shards each rank has only its
  /// own, so that is refused. `notes`: whatever else. Collective: ok on every rank when it is on
  /// the disk.
  Status save(const std::string& path, const std::map<std::string, const void*>& state = {},
              const std::map<std::string, std::string>& notes = {});
  /// Rank 0 reads such a file, and every rank has what it holds; the notes. Collective. kDataError
  /// on every rank names what is damaged, missing or of another shape; parameters are unspecified
  /// then.
  Result<std::map<std::string, std::string>> load(const std::string& path,
                                                  const std::map<std::string, void*>& state = {});
  bool is_sharded() const;
  /// What of a bucket this rank updates, and all of it in ascending order, where adjacent ranges
  /// are one. All ranks' together are the parameters; padding belongs to somebody too. Without
  /// shards everything is this rank's own, and gathering does nothing.
  DdpRange own_range(size_t bucket) const;
  const std::vector<DdpRange>& own_ranges() const;
  /// The own range of that bucket is up to date: starts to send it, and to receive the others'. The
  /// same buckets in the same order on every rank, each at most once between two waits for it.
  void gather_parameters(size_t bucket);
  /// Until then the bucket's parameters must not be touched. At once where nothing was gathered.
  Status wait_parameters(size_t bucket);
  /// For all buckets; the first failure.
  Status wait_parameters();
  /// Of the last gather of each bucket that has ended; zeros where there was none.
  const std::vector<Work::Times>& gather_times() const;

  const std::vector<DdpBucket>& layout() const;
  /// A number for the tensors and how they are bucketed: equal layouts, equal bits.
  uint64_t layout_hash() const;
  const std::vector<DdpBucketTimes>& times() const;
  Work::Times header_times() const;
  /// Suspicions, once each: the same data on two ranks, an epoch that did not advance. Also logged.
  const std::vector<std::string>& warnings() const;

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  explicit DistributedDataParallel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo
#pragma GCC visibility pop
