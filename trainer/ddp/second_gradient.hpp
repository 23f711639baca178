// The second gradient of a tensor: the rows of an embedding that a step looked up. Travels whole or
// as the touched rows, whichever is fewer bytes, and is then added to the first.
#pragma once

#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"

namespace rondo::ddp {

/// One tensor's. One thread. A step is: begin(), touch(), exchange_counts(), must_travel_whole(),
/// start() unless it must, add_to(), settle().
class SecondGradient {
 public:
  /// `gradient`: [rows x width] of the tensor's type, borrowed.
  SecondGradient(Communicator& communicator, const DdpTensor& tensor, const DdpOptions& options,
                 void* gradient);

  void begin();
  /// REQUIRES: rows of this tensor.
  void touch(std::span<const int32_t> rows);
  /// Starts to exchange how many rows each rank has touched.
  void exchange_counts();
  /// Waits for the counts. Whether the whole gradient has to travel: when the ranks together
  /// touched too many rows, or one of them named none.
  bool must_travel_whole();
  bool travelled_whole() const { return whole_; }
  /// The gradient is final: starts to send the touched rows. REQUIRES: !must_travel_whole().
  Work start(double factor);
  /// Waits until nothing of the step uses this memory any more, but start()'s Work.
  void settle();
  /// The Work has ended well: adds the sum over the ranks, in rank order, to `base`, in these
  /// ranges of its elements.
  Status add_to(void* base, std::span<const DdpRange> ranges);

 private:
  template <class Element>
  void pack(double factor);
  template <class Element>
  void add(void* base, const DdpRange& range) const;
  bool fewer_bytes() const;

  Communicator& communicator_;
  const DdpOptions& options_;
  const DataType type_;
  const size_t rows_, width_;
  void* const gradient_;

  static constexpr uint64_t kUnknown = UINT64_MAX;
  bool named_ = false, whole_ = true;
  std::vector<int32_t> touched_, all_touched_;
  uint64_t count_ = 0;
  std::vector<uint64_t> counts_;                // of each rank
  std::vector<size_t> row_counts_, elements_;   // the same, and times width
  std::vector<std::byte> values_, all_values_;  // of the touched rows
  std::vector<Work> count_work_;                // at most one
  std::vector<Work> index_work_;
};

}  // namespace rondo::ddp
