// Assembles one rank's batches ahead of the training loop, on threads that live as long as the
// loader, into memory allocated once. What a batch holds depends on the data, the sampler, and its
// place in the epoch: not on how many threads there are or which of them is first.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer {

/// Where training stands in the data, counted in samples of all ranks; see DistributedSampler.
struct DataPosition {
  uint64_t epoch = 0, consumed = 0;
};

/// One thread calls; the loader's own threads are not seen. next() lends a batch until the next
/// call of next() or start_epoch().
class Loader {
 public:
  struct Settings {
    size_t batch;            // samples of one rank's batch, at least 1
    size_t workers = 0;      // threads; 0: next() assembles the batch itself
    bool drop_last = false;  // leave out a last batch that is not full on every rank
  };

  /// Borrows the dataset. kResourceExhausted when a thread cannot be started; throws
  /// std::bad_alloc. REQUIRES: the sampler is over the dataset's samples, or fewer.
  static Result<std::unique_ptr<Loader>> create(const Dataset& dataset,
                                                const DistributedSampler& sampler,
                                                const Settings& options);
  /// Ends the threads; waits for the samples that they are reading.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Begins an epoch, or goes on in it after what was consumed, and starts to read ahead. May be
  /// called in the middle of another. REQUIRES: the same position on every rank.
  void start_epoch(const DataPosition& position);
  /// Blocks until the epoch's next batch is there. It may be empty, where another rank still has
  /// samples and this one none (kKeep). After the last batch, and before start_epoch(), an empty
  /// one. An error of the dataset comes with the batch that it concerns, and again until
  /// start_epoch().
  Result<Batch> next();
  /// How many batches next() still has: the same on every rank.
  uint64_t batches_left() const { return batches_ - next_; }

  size_t workers() const { return threads_.size(); }

  /// The batches delivered so far are in the parameters: position() moves past them. What was
  /// only read ahead, or delivered for a step that is not finished, does not count.
  void mark_done() { done_ = next_; }
  DataPosition position() const;

 private:
  struct Assembled {
    std::vector<int32_t> tokens, targets;
    std::vector<float> images;
    std::vector<uint64_t> ids;
    size_t size = 0;
    Status status;
    bool ready = false;  // guarded by mutex_
  };

  Loader(const Dataset& dataset, const DistributedSampler& sampler, const Settings& options);
  void work();
  bool may_take() const;
  void assemble(uint64_t number, Assembled& place) const;
  Status read_samples(Assembled& place) const;
  Batch batch_of(const Assembled& place) const;
  Assembled& place_of(uint64_t number) { return places_[number % places_.size()]; }

  const Dataset& dataset_;
  const Settings options_;
  DistributedSampler sampler_;     // changes only while no worker is busy
  std::vector<Assembled> places_;  // two per worker, and the one that is lent

  std::mutex mutex_;
  std::condition_variable work_, done_work_;
  // Guarded by mutex_, except that the calling thread reads what only it writes: all but the
  // first line.
  uint64_t taken_ = 0, busy_ = 0;  // batches begun by workers; workers that assemble one
  uint64_t batches_ = 0;           // of this epoch, from its position on
  uint64_t freed_ = 0;             // batches whose places may be written again
  bool stop_ = false;

  uint64_t next_ = 0, done_ = 0;  // batches delivered, and marked done; the calling thread's own
  std::vector<std::thread> threads_;
};

}  // namespace rondo::trainer
