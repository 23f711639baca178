// A custom communication hook: reduces each bucket as rondo would without one, and counts
// what travels. A hook that compresses would send something smaller and unpack it in finish().
#pragma once

#include <cstddef>
#include <rondo/rondo.hpp>
#include <string>

struct CountingHook : rondo::CommunicationHook {
  std::string name() const override { return "counting"; }

  rondo::Work start(rondo::Communicator& ranks, const rondo::GradientBucket& bucket) override {
    bytes += bucket.count * rondo::size_of(bucket.type);
    rondo::CallOptions scaled;
    scaled.factor = bucket.factor;  // what makes the sum a mean
    return ranks.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type,
                                  rondo::ReduceOp::kMulSum, scaled);
  }
  void finish(const rondo::GradientBucket&) override {}  // the sum is where it should be

  size_t bytes = 0;  // of all buckets so far
};
