// Data parallelism for your own training loop. Every rank holds the whole model and works on its
// own samples; gradients are averaged over the ranks while backward still computes others. There is
// no autograd: the caller reports when a gradient is final. docs/own_tensors.md begins with a loop; in
// rondo's source trainer/README.md compares the names with PyTorch's DistributedDataParallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"

#pragma GCC visibility push(default)  // librondo.so exports this part
namespace rondo {

/// One rank's samples of an epoch, as torch.utils.data.DistributedSampler chooses them: all samples
/// in one order, which depends on seed and epoch and is the same on every rank; rank r has entries
/// r, r + N, r + 2N, ... The order is that of rondo's Permutation, not of torch's generator.
///
/// Progress is counted in global samples, so that an epoch can continue on another number of ranks,
/// which share the samples that are left.
///
/// Thread-compatible; holds a few numbers; does not communicate.
class DistributedSampler {
 public:
  /// Treatment of samples that N ranks cannot share equally.
  enum class Tail {
    kPad,   // the order wraps around, so that every rank has as many (torch's default): some
            // samples count twice
    kDrop,  // left out, others in each epoch (torch's drop_last)
    kKeep,  // the first ranks have one more: for evaluation, where each sample must count once
  };
  struct Options {
    uint64_t samples;  // at most 2^62
    uint64_t ranks = 1, rank = 0;
    bool shuffle = true;  // else in the data's order
    uint64_t seed = 0;
    Tail tail = Tail::kPad;
  };

  /// Starts at the beginning of epoch 0. REQUIRES: rank < ranks; the other options equal on every
  /// rank.
  explicit DistributedSampler(const Options& options);

  /// Switches to an epoch of which all ranks together have consumed `consumed` samples. Without
  /// this call every epoch has the order of the first.
  void set_epoch(uint64_t epoch, uint64_t consumed = 0);
  uint64_t epoch() const { return epoch_; }

  /// The number of samples left for this rank, and the least and the most left for any rank,
  /// padding included.
  uint64_t size() const;
  uint64_t least() const;
  uint64_t most() const;
  /// Position in the data of the i-th sample left for this rank. REQUIRES: i < size().
  uint64_t index(uint64_t i) const;

  /// The `consumed` for set_epoch() once every rank has finished `count` more of its samples.
  /// Padding is not counted.
  uint64_t consumed_after(uint64_t count) const;

 private:
  uint64_t left() const { return options_.samples - consumed_; }  // on all ranks, without padding

  Options options_;
  uint64_t epoch_ = 0, consumed_ = 0;
};

/// The argument of a communication hook: one bucket whose gradients are final on this rank.
struct GradientBucket {
  /// Elements [begin, end) of a tensor, whole rows, in `data`.
  struct BucketPart {
    size_t tensor;  // its number
    std::span<const size_t> shape;
    size_t begin, end;
    void* data;
  };
  std::span<const BucketPart> parts;  // between them there may be padding: zeros
  size_t index;
  bool last;
  void* data;  // count elements; in: this rank's sum; out: the scaled sum over the ranks
  size_t count;
  DataType type;
  double factor;  // of this rank's gradients, applied before they are summed
  /// With DdpOptions::shard: each rank's part of the bucket, as arguments of reduce_scatter_v; only
  /// [own_offset, own_offset + own_count) of `data` must be correct. On a device all counts are
  /// `own_count`, as arguments of reduce_scatter. Otherwise empty, and all of `data` must be.
  std::span<const size_t> shard_counts, shard_offsets;
  size_t own_offset, own_count;
};

/// Replaces the all-reduce of a bucket by one or more collectives, of which each may depend on the
/// result of the one before. Called by the training thread, for every bucket in the same order on
/// every rank; touched rows alone (DdpOptions::Rows) travel without it. An exception of start() or
/// next() is an error of the step. docs/own_tensors.md has one of two collectives.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;
  virtual std::string name() const = 0;
  /// Starts the reduction. The bucket's memory is the hook's until finish().
  virtual Work start(Communicator& communicator, const GradientBucket& bucket) = 0;
  /// How many collectives reduce the bucket: at least 1, the same on every rank.
  virtual size_t collectives(const GradientBucket& /*bucket*/) const { return 1; }
  /// Starts number `stage` of them, from 1 on, when the one before has succeeded. Every later
  /// bucket that starts first waits for one collective of each bucket that has more; finish() of the
  /// step then goes through the buckets, and waits for all of each. So the order is the same on
  /// every rank.
  virtual Work next(Communicator& /*communicator*/, const GradientBucket& /*bucket*/,
                    size_t /*stage*/) {
#ifdef __cpp_exceptions
    throw std::logic_error("a hook of several collectives must override next()");
#else
    std::fputs("rondo: a hook of several collectives must override next()\n", stderr);
    std::abort();
#endif
  }
  /// Called when the last Work has succeeded: writes the result to bucket.data. Later buckets may still
  /// be in flight, and fail.
  virtual void finish(const GradientBucket& bucket) = 0;
  /// Bytes on the wire per element of `type`; DdpOptions::Rows::kFewerBytes compares with them. If they
  /// are not the type's, gradients do not travel themselves, and are not registered on a device.
  virtual size_t wire_bytes(DataType type) const { return size_of(type); }

  /// Over a communicator with Config::device, enqueue() takes the place of start(), next() and
  /// finish(). False: create() refuses the hook there.
  virtual bool works_on_device() const { return false; }
  /// Puts all that reduces the bucket on `stream`, a cudaStream_t on which its gradients are final:
  /// any number of collectives (CallOptions::stream) and kernels. `bucket.data` is the result once
  /// the stream has passed them. What `bucket` refers to is valid during the call only. It must not
  /// wait for the device, nor allocate or free memory there, which may wait: where ranks are
  /// threads of one process, for kernels that wait for this rank.
  virtual Status enqueue(Communicator& /*communicator*/, const GradientBucket& /*bucket*/,
                         void* /*stream*/) {
    return {Code::kInvalidArgument, "a hook that works on devices must override enqueue()"};
  }
};

/// Sends gradients as bfloat16 or float16, half the bytes. Each is scaled, then rounded once, and
/// summed as all_reduce or, with shards, reduce_scatter sums that type (DDP's bf16_compress_hook
/// and fp16_compress_hook). kInvalidArgument for another type.
Result<std::shared_ptr<CommunicationHook>> make_compression_hook(DataType wire);

/// DdpOptions::bucket_cap_mb: 25 at first. The begin() after `auto_after_steps` finished steps, or a
/// save() before it, then blocks: ranks compare when their gradients were final and what all-reduces
/// took, and buckets end where a model of the step exposes least. All ranks have rank 0's result.
/// Gradients, parameters and their addresses stay; layout(), own_range() and GradientBucket::index
/// change, once. On a device events take the times down, and that begin() waits for the streams;
/// captured and replayed steps are not finished ones, and a graph keeps the buckets it was captured
/// with: capture after the change (relayout().pending), or before it the same steps on all ranks.
///
/// Where the result of an all-reduce depends on the position in the bucket (rings and trees of three
/// ranks or more), two runs then differ in their last bits, except with Config::reproducible. A run
/// that resumes goes on with the same bits: save() writes the buckets, laid out anew by then
/// (settle_buckets()), and load() restores them.
inline constexpr double kDdpAutoCap = -std::numeric_limits<double>::infinity();

struct DdpOptions {
  DataType type = DataType::kFloat32;  // of tensors that name none, and of save()'s `state`
  /// MiB of gradients per all-reduce; a bucket ends with the tensor that brings it nearest to that. The
  /// first and the last bucket are smaller (1 MiB). 0: one bucket per tensor. A tensor larger than that is split. A bucket holds tensors of one type: it
  /// is closed before a tensor of another, so tensors of one type belong side by side. Or
  /// kDdpAutoCap, for tensors that are all of one type.
  double bucket_cap_mb = 25;
  /// With kDdpAutoCap: at least 1. The last four of these steps count, and not the first of several.
  uint64_t auto_after_steps = 5;
  /// False: nothing is sent before finish(), to measure the benefit of overlap.
  bool overlap = true;
  /// kLossTerms: the mean over all ranks' loss terms, correct for unequal batches. kRanks: the mean
  /// of the ranks' means, as in PyTorch's DDP. kNone: no mean: after finish() gradients are the sum
  /// over all ranks, and the caller's update divides it, by headers().
  enum class Average { kLossTerms, kRanks, kNone } average = Average::kLossTerms;
  /// What the caller's gradients are. kOfMean: those of the MEAN of this rank's loss terms, which is
  /// what PyTorch's cross_entropy and mse_loss give. rondo weights each rank's gradients by its loss
  /// terms (kLossTerms) or all ranks alike (kRanks). If you accumulate several micro-batches, weight
  /// each by its share of the rank's loss terms before you add it. kOfSum: those of the SUM of this
  /// rank's loss terms. rondo divides them by the number of terms. kNone ignores this choice.
  enum class Gradients { kOfMean, kOfSum } gradients = Gradients::kOfMean;
  /// Whether ranks that run out of data first continue with empty batches. False: running out first
  /// is an error on every rank.
  bool join = false;
  /// Every step copies the buffers of rank 0, or of the first rank with loss terms, to all ranks.
  /// They travel from the first gradient_ready() outside no_sync() to finish(), and must not be
  /// written in between.
  bool broadcast_buffers = true;
  /// How the gradients of `adds_to` tensors travel: whole, or only the rows of touches_rows().
  enum class Rows { kFewerBytes, kWhole, kTouched } rows = Rows::kFewerBytes;
  std::shared_ptr<CommunicationHook> hook = nullptr;
  /// ZeRO stage 1: each rank updates only its share of the parameters, own_ranges(), and keeps only
  /// that share of the optimizer's state. Gradients are reduce-scattered, so after finish() only
  /// those of the own ranges are averages; parameters are gathered afterwards.
  bool shard = false;
  /// With a communicator on a device: the cudaStream_t, which outlives the DistributedDataParallel,
  /// on which gradients are computed and parameters are used and updated; null: the legacy default
  /// stream. Ranks of one process that share a GPU need a non-blocking stream each.
  void* stream = nullptr;
  /// With a communicator on a device, required: one of the same ranks in the same order without a
  /// device, for what the host exchanges. Borrowed; nothing else may use it between begin() and
  /// finish(). Without a device both must be null.
  Communicator* host = nullptr;
};

/// Shards are cut between tensors, and inside a tensor only at multiples of this many elements from
/// its start, so that a result computed over blocks of that size (a norm) has every block on one
/// rank. On a device they are equal parts of each bucket instead, which begin at any multiple of 64
/// bytes; buckets are padded for that.
inline constexpr size_t kDdpShardUnit = 4096;

/// Elements [begin, end) of the flat storages.
struct DdpRange {
  size_t begin, end;

  size_t count() const { return end - begin; }
  bool operator==(const DdpRange&) const = default;
};

/// Each rank's message to the others at the start of a step.
struct DdpHeader {
  /// The number of loss terms (samples or tokens) of this rank's batch. Set it: the mean of the
  /// gradients is computed from it. 0 is an empty batch. If all ranks have 0, gradients are an error,
  /// except with Average::kNone.
  uint64_t loss_terms = 0;
  bool end_of_data = false;  // no batch follows in this epoch
  uint64_t epoch = 0;
  uint64_t sample_hash = 0;  // of the samples' identities; 0: unknown
};

/// The sum of all ranks' headers.
struct DdpStep {
  uint64_t loss_terms = 0;   // of all ranks
  int active_ranks = 0;      // with loss terms
  bool epoch_ended = false;  // no rank has another batch
};

/// Times of one bucket in the last finished step; CLOCK_MONOTONIC nanoseconds.
struct DdpBucketTimes {
  int64_t ready_ns;  // its last gradient was final
  Work::Times work;
};

/// A place on a device's streams. kReady: the compute stream has what the transfer carries. kStarted
/// and kEnded: rondo's own stream begins it, and has done it.
struct DdpTransferMark {
  enum class At : uint8_t { kReady, kStarted, kEnded } at;
  bool gathers;  // parameters; else gradients are reduced
  size_t bucket;
  void* stream;  // that stream, a cudaStream_t
};

/// What kDdpAutoCap has done. The exposed communication of a step is predicted, by one model.
struct DdpRelayout {
  bool automatic = false;    // the options say kDdpAutoCap
  bool pending = false;      // and buckets are still those of the beginning
  uint64_t after_steps = 0;  // finished ones; 0: not yet
  size_t buckets_before = 0, buckets = 0;
  double exposed_before_ms = 0, exposed_ms = 0;
};

/// The parameters, gradients and buffers of one rank: its own memory, flat, in the order of the
/// tensors, or the caller's (DdpTensor::data, DdpTensor::gradient). The order should be that in
/// which backward finishes gradients. A sum of bfloat16 or float16 gradients is rounded as
/// all_reduce rounds it; a loss scale is the caller's. One thread at a time; between begin()
/// and finish() nothing else may use the communicator, except in the same order on every rank.
///
/// Gradients are those of the MEAN of this rank's loss terms, as in PyTorch. For gradients of their
/// sum set DdpOptions::gradients to kOfSum. There is no
/// zero_grad(): after finish() gradients hold the average, so the first micro-batch of a step
/// writes them all (zeros for an empty batch), and the others add. Destroyed during a step, it
/// aborts the communicator and waits until nothing uses its memory.
///
/// Over a communicator with Config::device, parameters, gradients and buffers are memory of that
/// device, and calls put work on DdpOptions::stream, the compute stream. gradient_ready() means
/// that the gradient is final when the stream has done what it has by then. Buckets are reduced on
/// a stream of rondo's own; what the compute stream gets in `reduced` or after finish() comes after
/// that, and with shards what it gets after wait_parameters() comes after the gather. create() and
/// the destructor may wait for the GPU, the other calls do not (but see Communicator: with hundreds
/// of launches in flight they do). They wait for other ranks' hosts: for their headers, and where
/// tensors may_skip for the map of used ones.
///
/// Where ranks are processes of one host, create() registers the gradients and parameters that are
/// rondo's with the communicator (Communicator::register_device_memory()), so that kernels reduce and
/// gather in place (gradients not with a hook of other wire_bytes()); what cannot be registered
/// goes through slots, as rank 0 logs (info). Destroy the object on all ranks at about the same
/// time, when other operations of the communicator have ended: the destructor ends the
/// registrations and waits for the other ranks to have done so, also after errors, at most ten
/// seconds. Memory that another rank may still map is then left until the process ends, because in
/// CUDA it is undefined to free it.
///
/// On one host a step may be captured in a CUDA graph (mode: thread-local or relaxed), on all ranks:
/// after begin() and headers() begin to capture the compute stream, and end after finish(). Nothing
/// has run then, and the step is as after begin(): launch the graph and call replayed(), or make the
/// step as usual. A later step may replay the graph if all ranks have as many loss terms as in that
/// one. With shards wait_parameters() is called before the capture begins, for what the last step has
/// gathered, and again before it ends: a captured gather that is not waited for makes the capture fail,
/// and so does a wait in it for an earlier one. A hook's enqueue() is called in the capture only:
/// what it enqueues must be possible there, and is replayed with the same memory and `factor`. A step
/// whose tensors may_skip cannot be captured.
///
/// An error of the GPU or of another rank's kernels is found by a later begin(), gradient_ready()
/// or finish(), while the stream goes on with wrong data; after the last step, by
/// Communicator::status() when the stream is done. After any error the streams may use all memory
/// until this object is destroyed: the destructor waits for them, and after a minute leaves its own
/// memory to them. Not on a device: hooks without enqueue(), set_bucket_ends() without kDdpAutoCap,
/// `adds_to` tensors, kTouched rows, 16-bit tensors in a reproducible communicator, save() and
/// load(), the warning of a wrong order of tensors.
///
///     ddp.replicate();   // once, when rank 0's parameters are set
///     ddp.begin({...});
///     { auto quiet = ddp.no_sync(); ... gradient_ready() for all tensors ... }   // K - 1 times
///     ... gradient_ready() for all tensors ...                                    // once
///     ddp.finish();   // gradients are averaged: update the parameters
///
/// or, if a bucket's update needs no other bucket,
///
///     ddp.finish([&](size_t bucket) { ... update own_range(bucket) ... });
///
/// With DdpOptions::shard the update is, for each bucket from the last to the first:
///
///     ... update own_range(bucket) ...
///     ddp.gather_parameters(bucket);    // travels while the next bucket is updated
///
/// and wait_parameters() before the next forward. The last bucket holds what forward uses first.
class DistributedDataParallel {
 public:
  /// Collective. Compares the tensors and options of all ranks: kMismatch on every rank names the
  /// first difference, both ranks and both values. kResourceExhausted without memory. Borrows
  /// `communicator`. Its own memory is zeroed (on a device: by the compute stream).
  static Result<DistributedDataParallel> create(Communicator& communicator,
                                                std::vector<DdpTensor> tensors,
                                                std::vector<DdpTensor> buffers = {},
                                                const DdpOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;

  /// With type, data and gradient filled in.
  const std::vector<DdpTensor>& tensors() const;
  const std::vector<DdpTensor>& buffers() const;
  DataType type() const;
  Communicator& communicator();
  /// Element `offset(i)` of the flat storages is the first of tensor i, each element of its tensor's
  /// type. Parameters end before the first `adds_to` tensor.
  size_t offset(size_t tensor) const;
  size_t parameter_elements() const;  // of the flat storages, padding (always zero) included
  size_t gradient_elements() const;
  void* parameters();  // null: the caller's memory
  void* gradients();
  void* buffer(size_t index);
  /// Wherever they are. T must be the tensor's type.
  template <class T>
  T* parameter(size_t tensor) {
    return static_cast<T*>(tensors()[tensor].data);
  }
  template <class T>
  T* gradient(size_t tensor) {
    return static_cast<T*>(tensors()[tensor].gradient);
  }

  /// Copies rank 0's parameters and buffers to every rank. Required after create(), once rank 0 has
  /// set them, and before the first begin(). load() does it too.
  Status replicate();

  /// Starts a step and the exchange of headers; does not block, except once with kDdpAutoCap. It is
  /// an error on every rank without replicate() or before the last step's finish() (except after a
  /// step without any loss terms).
  Status begin(const DdpHeader& mine);
  /// Waits for all headers. Optional: finish() waits too. An error on every rank if some are out of
  /// data and others are not and `join` is off, or if epochs differ.
  Result<DdpStep> headers();

  /// While it exists, gradients are accumulated and not sent.
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

  /// Reports that the first `count` elements of this tensor's gradient are final (in this
  /// micro-batch). Reporting elements twice without no_sync() is an error on every rank in this
  /// step.
  void gradient_ready(size_t tensor, size_t count);
  void gradient_ready(size_t tensor);
  /// Reports instead that this micro-batch does not use the tensor and has not touched its
  /// gradient. For a tensor without may_skip this is an error on every rank in this step.
  void gradient_skipped(size_t tensor);
  /// Names all rows of an `adds_to` tensor's gradient that this step makes nonzero, in any order,
  /// before the last backward pass begins.
  void touches_rows(size_t tensor, std::span<const int32_t> rows);

  /// Sends the remaining buckets and waits. ok: gradients are the average over all ranks, the same
  /// bits on every rank. Otherwise the first failure, after everything has ended; it names tensors
  /// without a gradient.
  ///
  /// `reduced` is called by this thread once per bucket when its gradients are the average, while
  /// later buckets travel or other ranks still compute: to update own_range(bucket) in that time.
  /// Buckets come in order, except that a tied tensor's bucket comes after the looked-up rows have
  /// been added to it. An update that needs all gradients first (clipping) cannot be done there.
  /// After a failure some buckets have been reported and others not. Without overlap, and with
  /// tensors that may_skip (whose used() is then known), all calls come at the end. It must not
  /// call begin() or finish(). If it throws, the step stays unfinished: destroy this object, which
  /// aborts the other ranks.
  Status finish(const std::function<void(size_t bucket)>& reduced = {});
  /// Instead of gradient_ready() and finish(), on a device: the compute stream has got a graph into
  /// which they were captured. All tensors count as used.
  Status replayed();
  /// Whether any rank used this tensor in the last finished step. If not, leave its parameter and
  /// its optimizer state unchanged.
  bool used(size_t tensor) const;

  /// Collective. Rank 0 writes parameters, buffers and `state` into one safetensors file, which
  /// replaces the old one atomically: after a crash one of the two is there. `state`: by name,
  /// arrays of parameter_elements() of the options' type, in which offset() leads to each tensor's
  /// (an optimizer's); refused with shards, where each rank has only its own. `notes`: any text. ok
  /// on every rank once the file is on disk. Between two steps; with kDdpAutoCap it settles the
  /// buckets first (settle_buckets()), and so may change layout().
  Status save(const std::string& path, const std::map<std::string, const void*>& state = {},
              const std::map<std::string, std::string>& notes = {});
  /// Collective. Rank 0 reads such a file and sends its contents to every rank; returns the notes.
  /// kDataError on every rank names what is damaged, missing or of another shape or type; parameters
  /// are unspecified then. With kDdpAutoCap and as many ranks the file's buckets are used, too.
  Result<std::map<std::string, std::string>> load(const std::string& path,
                                                  const std::map<std::string, void*>& state = {});
  bool is_sharded() const;
  /// The part of a bucket that this rank updates; and all such parts in ascending order, adjacent
  /// ones merged. All ranks' parts together cover the parameters, padding included. Without shards
  /// this rank owns everything, and gathering does nothing.
  DdpRange own_range(size_t bucket) const;
  const std::vector<DdpRange>& own_ranges() const;
  /// Starts to send the updated own range of that bucket and to receive the others'. The same
  /// buckets in the same order on every rank, each at most once between two waits for it.
  void gather_parameters(size_t bucket);
  /// Waits for a bucket's parameters, which must not be touched before. Returns at once if nothing
  /// was gathered.
  Status wait_parameters(size_t bucket);
  /// Waits for all buckets; returns the first failure, or the error of a wrong gather_parameters().
  Status wait_parameters();
  /// Times of the last ended gather of each bucket; zeros if there was none, and on a device.
  const std::vector<Work::Times>& gather_times() const;

  const std::vector<DdpBucket>& layout() const;
  const DdpRelayout& relayout() const;
  /// Replaces the buckets, between two steps, by others that end at these elements of the flat
  /// storages (offset + count of each), the same on every rank; kDdpAutoCap then changes them no
  /// more. kInvalidArgument, with shards or where buckets cannot end there, and kResourceExhausted
  /// without memory; nothing has changed then.
  Status set_bucket_ends(const std::vector<size_t>& ends);
  /// Collective, between two steps. With kDdpAutoCap lays buckets out anew now, by the steps so far,
  /// unless that was done or no step was made. An error on every rank before finish() of a step.
  Status settle_buckets();
  /// Of the last finished step; zeros before, and on a device, where only events know (mark_transfers()).
  const std::vector<DdpBucketTimes>& times() const;
  /// On a device: `mark` is called by the thread that enqueues a transfer, when the stream has got what
  /// is to come before the place and not what comes after it: to record an event there. Also in a step
  /// that is captured, where an event is part of the graph and knows no time. Set between two steps;
  /// empty: none. It must not wait for the GPU, nor throw.
  void mark_transfers(std::function<void(const DdpTransferMark&)> mark);
  Work::Times header_times() const;
  /// Warnings, once each: the same data on two ranks, an epoch that did not advance, an order of
  /// tensors that keeps finished buckets from travelling (by this rank's times). Rank 0 logs them.
  const std::vector<std::string>& warnings() const;

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  explicit DistributedDataParallel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo
#pragma GCC visibility pop
