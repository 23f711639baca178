// Where gradients lie: order, caps, alignment, no gaps that nobody accounts for.
#include "trainer/buckets.hpp"

#include "tests/harness/catch.hpp"

using namespace rondo::trainer;

TEST_CASE("buckets: closed by the parameter that reaches the cap; the first has its own") {
  // Elements of 4 bytes; every count a multiple of 16, so there is no padding.
  const BucketLayout layout =
      make_buckets({16, 32, 16, 160, 16, 16}, 4, {.first_bytes = 128, .bytes = 256});
  REQUIRE(layout.buckets.size() == 3);
  CHECK(layout.offsets == std::vector<size_t>{0, 16, 48, 64, 224, 240});
  CHECK(layout.count == 256);
  const auto is = [](const Bucket& b, int first, int parameters, size_t offset, size_t count) {
    CHECK(b.first_parameter == first);
    CHECK(b.parameter_count == parameters);
    CHECK(b.offset == offset);
    CHECK(b.count == count);
  };
  is(layout.buckets[0], 0, 2, 0, 48);    // 64 + 128 bytes reach 128
  is(layout.buckets[1], 2, 2, 48, 176);  // 64 bytes are below 256, and one parameter is not split
  is(layout.buckets[2], 4, 2, 224, 32);  // what is left, below the cap
}

TEST_CASE("buckets: cover every element once, in order, whatever the sizes") {
  for (const size_t element_bytes : {size_t{4}, size_t{8}}) {
    for (const size_t cap : {size_t{0}, size_t{1}, size_t{100}, size_t{5000}, size_t{1} << 30}) {
      std::vector<size_t> counts;
      for (size_t i = 0; i < 40; ++i) counts.push_back((i * 37) % 101);
      const BucketLayout layout =
          make_buckets(counts, element_bytes, {.first_bytes = cap / 4, .bytes = cap});
      size_t element = 0;
      int parameter = 0;
      for (const Bucket& bucket : layout.buckets) {
        CHECK(bucket.offset == element);
        CHECK(bucket.first_parameter == parameter);
        CHECK(bucket.parameter_count >= 1);
        element += bucket.count;
        parameter += bucket.parameter_count;
      }
      CHECK(element == layout.count);
      CHECK(parameter == 40);
      for (size_t p = 0; p < counts.size(); ++p) {
        CHECK(layout.offsets[p] * element_bytes % 64 == 0);
        const size_t end = p + 1 < counts.size() ? layout.offsets[p + 1] : layout.count;
        CHECK(end - layout.offsets[p] >= counts[p]);
        CHECK((end - layout.offsets[p]) * element_bytes < counts[p] * element_bytes + 64);
      }
      if (cap <= 1) CHECK(layout.buckets.size() >= 39);  // one each; empty ones may join
      if (cap == size_t{1} << 30) CHECK(layout.buckets.size() == 1);
    }
  }
}

TEST_CASE("buckets: no parameters, no buckets") {
  const BucketLayout layout = make_buckets({}, 4, {.first_bytes = 1, .bytes = 1});
  CHECK(layout.buckets.empty());
  CHECK(layout.count == 0);
}

TEST_CASE("buckets: of the default model the first is full before backward's last layer") {
  // output, hidden2, hidden1 (bias and weight each), embedding; caps of rondo-train
  const BucketLayout layout = make_buckets({256, 131072, 512, 262144, 512, 262144, 8192}, 4,
                                           {.first_bytes = 1 << 20, .bytes = 25 << 20});
  REQUIRE(layout.buckets.size() == 2);
  CHECK(layout.buckets[0].parameter_count == 4);
  CHECK(layout.count == 664832);
}
