// See loader.hpp. Batch b of the epoch is assembled in place b % places. Workers take batches in
// order, each a whole one; a batch may be begun once the one that had its place before is given
// back.
#include "trainer/data/loader.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <system_error>

namespace rondo::trainer {
namespace {

template <class T>
T* row(std::vector<T>& rows, size_t index, size_t width) {
  return width == 0 ? nullptr : rows.data() + index * width;
}

}  // namespace

Result<std::unique_ptr<Loader>> Loader::create(const Dataset& dataset,
                                               const DistributedSampler& sampler,
                                               const Settings& options) {
  std::unique_ptr<Loader> loader(new Loader(dataset, sampler, options));
  try {
    for (size_t w = 0; w < options.workers; ++w) {
      loader->threads_.emplace_back([raw = loader.get()] { raw->work(); });
    }
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  "thread " + std::to_string(loader->threads_.size()) + " of " +
                      std::to_string(options.workers) +
                      " that read data cannot be started: " + error.what());
  }
  return loader;
}

Loader::Loader(const Dataset& dataset, const DistributedSampler& sampler, const Settings& options)
    : dataset_(dataset), options_(options), sampler_(sampler), places_(2 * options.workers + 1) {
  RONDO_CHECK(options.batch > 0);
  const SampleShape& shape = dataset.shape();
  for (Assembled& place : places_) {
    place.tokens.resize(options.batch * shape.context);
    place.images.resize(options.batch * shape.pixels());
    place.targets.resize(options.batch * shape.targets);
    place.ids.resize(options.batch);
  }
  threads_.reserve(options.workers);
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Loader::start_epoch(const DataPosition& position) {
  std::unique_lock lock(mutex_);
  batches_ = 0;  // nothing more is taken
  done_work_.wait(lock, [this] { return busy_ == 0; });
  sampler_.set_epoch(position.epoch, position.consumed);
  for (Assembled& place : places_) place.ready = false;
  taken_ = freed_ = next_ = done_ = 0;
  const uint64_t batch = options_.batch;
  batches_ = options_.drop_last ? sampler_.least() / batch : (sampler_.most() + batch - 1) / batch;
  lock.unlock();
  work_.notify_all();
}

Result<Batch> Loader::next() {
  if (next_ == batches_) return Batch{};
  Assembled& place = place_of(next_);
  if (threads_.empty()) {
    assemble(next_, place);
  } else {
    std::unique_lock lock(mutex_);
    if (freed_ < next_) {
      place_of(freed_).ready = false;
      freed_ = next_;
      work_.notify_one();
    }
    done_work_.wait(lock, [&] { return place.ready; });
  }
  RONDO_TRY(place.status);
  ++next_;
  return batch_of(place);
}

DataPosition Loader::position() const {
  return {.epoch = sampler_.epoch(), .consumed = sampler_.consumed_after(done_ * options_.batch)};
}

Batch Loader::batch_of(const Assembled& place) const {
  const auto pointer = [](const auto& rows) { return rows.empty() ? nullptr : rows.data(); };
  return {.size = place.size,
          .tokens = pointer(place.tokens),
          .images = pointer(place.images),
          .targets = pointer(place.targets),
          .ids = place.ids.data()};
}

bool Loader::may_take() const { return taken_ < batches_ && taken_ < freed_ + places_.size(); }

void Loader::work() {
  // On busy cores a woken worker would run at once, before the thread that trains and has just
  // asked for a batch that is there. A batch thread waits its turn. Only a hint: where it is
  // refused, nothing else changes.
  const sched_param ordinary = {};
  (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &ordinary);
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || may_take(); });
    if (stop_) return;
    Assembled& place = place_of(taken_);
    const uint64_t number = taken_++;
    ++busy_;
    lock.unlock();
    assemble(number, place);
    lock.lock();
    --busy_;
    place.ready = true;
    done_work_.notify_one();  // only the calling thread waits
  }
}

void Loader::assemble(uint64_t number, Assembled& place) const {
  const uint64_t first = number * options_.batch, samples = sampler_.size();
  place.size = first < samples
                   ? static_cast<size_t>(std::min<uint64_t>(samples - first, options_.batch))
                   : 0;
  for (size_t i = 0; i < place.size; ++i) place.ids[i] = sampler_.index(first + i);
  place.status = read_samples(place);
}

Status Loader::read_samples(Assembled& place) const try {
  const SampleShape& shape = dataset_.shape();
  for (size_t i = 0; i < place.size; ++i) {
    RONDO_TRY(dataset_.read(place.ids[i], {.tokens = row(place.tokens, i, shape.context),
                                           .images = row(place.images, i, shape.pixels()),
                                           .targets = row(place.targets, i, shape.targets)}));
  }
  return {};
} catch (const std::exception& error) {  // of the thread: it would end the process
  return Status(Code::kSystem,
                "data '" + dataset_.facts().path + "': reading samples: " + error.what());
}

}  // namespace rondo::trainer
