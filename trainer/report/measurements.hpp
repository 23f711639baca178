// When things happened in a run's steps, on this rank: each gradient, each bucket, the step itself.
// Keeps the last steps and gives medians; draws no conclusions.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/base/interval.hpp"
#include "trainer/report/prediction.hpp"

namespace rondo::trainer {

/// The last kLast of what was added.
class Series {
 public:
  static constexpr size_t kLast = 256;
  void add(double value);
  /// 0 of nothing.
  double median() const;
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  size_t next_ = 0;
};

/// The time in which at least one of several operations was under way, issued and not ended; and
/// the part of it in which this rank's compute thread waited: what is exposed. The rest is hidden.
class UnderWay {
 public:
  /// When it waited.
  explicit UnderWay(std::vector<Interval> waits) : waits_(std::move(waits)) {}
  /// In the order in which they were issued, which is that in which they end.
  void add(const Work::Times& times);
  int64_t ns() const { return ns_; }
  int64_t exposed_ns() const { return exposed_ns_; }

 private:
  const std::vector<Interval> waits_;
  int64_t ns_ = 0, exposed_ns_ = 0, until_ = 0;
};

/// Medians over the steps, each for itself: they need not add up. An all-reduce's turn comes when
/// it has been issued and the one before it has ended; from then on it is transferred, which
/// includes waiting for ranks that come later.
struct BucketMedians {
  double ready_ms;     // its last gradient was final, after backward began
  double waited_ms;    // from there until it was issued: for the buckets before it, or backward
  double queued_ms;    // from there until its turn
  double transfer_ms;  // from there until it had ended
  double hidden_ms, exposed_ms;  // of transfer_ms: while this rank computed; while it waited
  double gather_ms;              // with --zero 1: the transfer of its parameters
};

/// One thread.
class Measurements {
 public:
  explicit Measurements(size_t buckets = 0) : buckets_(buckets) {}

  /// Of a step's micro-batches the last counts.
  void backward_begins(int64_t ns);
  void gradient_ready(size_t tensor, size_t count, int64_t ns);
  struct StepMoments {
    int64_t begin_ns = 0, end_ns = 0;
    int64_t data_wait_ns = 0;       // for samples
    int64_t begin_wait_ns = 0;      // for headers that forward must not begin without
    int64_t parameter_wait_ns = 0;  // for the last step's parameters
    int64_t header_wait_ns = 0;     // in backward, for other ranks' headers
    int64_t backward_end_ns = 0;
    std::vector<Interval> waits = {};     // after backward, for gradients; between them it updated
    int64_t comm_ns = 0, exposed_ns = 0;  // of gradients and parameters (UnderWay)

    int64_t ns() const { return end_ns - begin_ns; }
    int64_t wait_ns() const {  // for other ranks
      return sum_ns(waits) + parameter_wait_ns + header_wait_ns + begin_wait_ns;
    }
    int64_t compute_ns() const { return ns() - wait_ns() - data_wait_ns; }
  };
  void step_ends(const StepMoments& step, const std::vector<DdpBucketTimes>& buckets);
  /// Each bucket's gather of parameters has ended; the last bucket's was issued first.
  void gathered(const std::vector<Work::Times>& buckets);

  bool empty() const { return step_.values().empty(); }
  std::vector<GradientTime> gradients() const;
  std::vector<BucketMedians> buckets() const;
  double backward_ms() const { return backward_.median(); }
  double optimizer_ms() const { return optimizer_.median(); }
  double parameter_wait_ms() const { return parameter_wait_.median(); }
  double step_ms() const { return step_.median(); }        // without waiting for data
  double compute_ms() const { return compute_.median(); }  // without waiting for anything
  /// Of each kept step, what this rank took from the end of the last all-reduce before it to the
  /// end of its backward pass. As many on every rank.
  const std::vector<double>& arrivals_ms() const { return arrivals_.values(); }
  /// What was exposed in each kept step. As many on every rank.
  const std::vector<double>& exposed_ms() const { return exposed_.values(); }
  /// Of each bucket one after the other, the transfer in each kept step.
  std::vector<double> transfers_ms() const;
  /// The same of gathers; empty when there were none.
  std::vector<double> gathers_ms() const;

 private:
  struct BucketSeries {
    Series ready, waited, queued, transfer, hidden, exposed, gather;
  };
  std::vector<double> all_of(Series BucketSeries::*field) const;

  int64_t backward_begin_ns_ = 0, last_reduced_ns_ = 0;
  std::vector<GradientTime> step_gradients_;  // of the pass under way
  std::map<std::pair<size_t, size_t>, Series> gradients_;
  std::vector<BucketSeries> buckets_;
  Series backward_, optimizer_, parameter_wait_, compute_, step_, arrivals_, exposed_;
};

}  // namespace rondo::trainer
