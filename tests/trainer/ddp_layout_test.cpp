// Where gradients lie, which travel together and in which order: caps, panels, alignment, every
// element in one bucket.
#include "tests/trainer/ddp_rig.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/order.hpp"

using namespace rondo;
using rondo::ddp::BucketLayout;
using rondo::ddp::BucketOrder;
using rondo::ddp::make_layout;
using rondo::testing::show;
using rondo::testing::Tensors;

namespace {

Tensors vectors(const std::vector<size_t>& counts) {
  Tensors tensors;
  for (const size_t count : counts) tensors.push_back({.name = "t", .shape = {count}});
  return tensors;
}

/// Every element of the flat storage in exactly one bucket, every element of a tensor in one piece.
void require_cover(const BucketLayout& layout, const Tensors& tensors, size_t bytes) {
  size_t element = 0;
  std::vector<size_t> covered(tensors.size());
  for (const DdpBucket& bucket : layout.buckets) {
    CHECK(bucket.offset == element);
    element += bucket.count;
    REQUIRE_FALSE(bucket.pieces.empty());
    for (const DdpBucket::Piece& piece : bucket.pieces) {
      CHECK(piece.begin == covered[piece.tensor]);
      covered[piece.tensor] = piece.end;
      CHECK(layout.offsets[piece.tensor] + piece.begin >= bucket.offset);
      CHECK(layout.offsets[piece.tensor] + piece.end <= bucket.offset + bucket.count);
    }
  }
  CHECK(element == layout.gradient_elements);
  for (size_t t = 0; t < tensors.size(); ++t) {
    CHECK(covered[t] == tensors[t].count());
    CHECK(layout.offsets[t] * bytes % 64 == 0);
  }
}

}  // namespace

TEST_CASE("ddp layout: closed where it is nearest to the cap; the first and last are small") {
  // Elements of 4 bytes; every count a multiple of 16, so there is no padding.
  const auto tensors = vectors({16, 32, 16, 32, 32, 16, 32, 48, 16, 16});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 256, .small_bytes = 128});
  // 64 + 128 bytes reach 128; then 64 + 128 + 128 are nearer to 256 than without the last; 64 + 128
  // are nearer than with 192 more; 192 + 64 reach 256; what is left is small.
  CHECK(show(layout.buckets) ==
        "0:0-16 1:0-32 | 2:0-16 3:0-32 4:0-32 | 5:0-16 6:0-32 | 7:0-48 8:0-16 | 9:0-16");
  require_cover(layout, tensors, 4);
}

TEST_CASE("ddp layout: a bias stays with its weight where that needs a bucket of its own") {
  const auto tensors = vectors({16, 256, 16, 256, 16, 256, 16});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 1280, .small_bytes = 64});
  CHECK(show(layout.buckets) == "0:0-16 | 1:0-256 | 2:0-16 3:0-256 | 4:0-16 5:0-256 | 6:0-16");
  require_cover(layout, tensors, 4);
}

TEST_CASE("ddp layout: a large last bucket is relieved of all but its small end") {
  const auto tensors = vectors({32, 16, 16, 16, 16});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 1024, .small_bytes = 128});
  CHECK(show(layout.buckets) == "0:0-32 | 1:0-16 2:0-16 | 3:0-16 4:0-16");
  // An end that is not small travels alone.
  CHECK(show(make_layout(vectors({32, 16, 64}), 4, {.bytes = 1024, .small_bytes = 128}).buckets) ==
        "0:0-32 | 1:0-16 | 2:0-64");
}

TEST_CASE("ddp layout: a tensor above the cap is cut between rows") {
  const Tensors tensors = {{.name = "matrix", .shape = {10, 24}}};
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 300, .small_bytes = 100});
  // Two rows of 24 reach 25 elements, four reach 75.
  CHECK(show(layout.buckets) == "0:0-48 | 0:48-144 | 0:144-240");
  require_cover(layout, tensors, 4);
  // A row above the cap stays whole.
  CHECK(show(make_layout(tensors, 4, {.bytes = 64, .small_bytes = 64}).buckets)
            .starts_with("0:0-24 | 0:24-48 |"));
}

TEST_CASE("ddp layout: what adds to another travels alone and last") {
  Tensors tensors = vectors({16, 16, 16});
  tensors[2].adds_to = 0;
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 1024, .small_bytes = 1024});
  CHECK(show(layout.buckets) == "0:0-16 1:0-16 | 2:0-16");
  CHECK(layout.parameter_elements == 32);
  CHECK(layout.gradient_elements == 48);
}

TEST_CASE("ddp layout: a cap of zero gives every tensor its own bucket") {
  const auto tensors = vectors({16, 4000, 3});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 0, .small_bytes = 1 << 20});
  CHECK(show(layout.buckets) == "0:0-16 | 1:0-4000 | 2:0-3");
  require_cover(layout, tensors, 4);
}

TEST_CASE("ddp layout: covers every element once, in order, whatever the sizes") {
  for (const size_t bytes : {size_t{4}, size_t{8}}) {
    for (const size_t cap : {size_t{0}, size_t{8}, size_t{100}, size_t{5000}, size_t{1} << 30}) {
      Tensors tensors;
      for (size_t i = 0; i < 40; ++i) {
        tensors.push_back({.name = "t", .shape = {1 + (i * 37) % 11, 1 + (i * 53) % 13}});
      }
      require_cover(make_layout(tensors, bytes, {.bytes = cap, .small_bytes = cap / 4}), tensors,
                    bytes);
    }
  }
}

TEST_CASE("ddp layout: of GPT-2 124M no bucket but the lookup's is above the cap and a tensor") {
  Tensors tensors = {{.name = "wte", .shape = {50257, 768}}};
  for (int layer = 0; layer < 12; ++layer) {
    for (const size_t rows : {size_t{768}, size_t{3072}, size_t{768}, size_t{2304}}) {
      tensors.push_back({.name = "w", .shape = {rows, rows == 768 ? size_t{3072} : size_t{768}}});
      tensors.push_back({.name = "b", .shape = {rows}});
    }
  }
  tensors.push_back({.name = "wpe", .shape = {1024, 768}});
  tensors.push_back({.name = "rows", .shape = {50257, 768}, .adds_to = 0});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 25 << 20, .small_bytes = 1 << 20});
  require_cover(layout, tensors, 4);
  for (size_t b = 0; b + 1 < layout.buckets.size(); ++b) {
    CHECK(layout.buckets[b].count * 4 < (25 << 20) + (10 << 20));
  }
  CHECK(layout.buckets.size() > 20);
}

TEST_CASE("ddp order: buckets are taken in order, each once, when all their pieces are final") {
  const auto tensors = vectors({16, 16, 32});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 64, .small_bytes = 64});
  REQUIRE(show(layout.buckets) == "0:0-16 | 1:0-16 | 2:0-16 | 2:16-32");
  BucketOrder order(tensors, layout, true);
  for (int step = 0; step < 2; ++step) {
    order.begin();
    CHECK(order.unfinished() == std::vector<size_t>{0, 1, 2});
    CHECK(order.mark_final(1, 16, 5));
    CHECK(!order.take_next());  // bucket 1 is complete, bucket 0 is not
    CHECK(order.mark_final(2, 15, 6));
    CHECK(order.mark_final(2, 20, 7));
    CHECK(order.mark_final(0, 16, 8));
    CHECK(order.take_next() == 0);
    CHECK(order.take_next() == 1);
    CHECK(order.take_next() == 2);
    CHECK(!order.take_next());
    CHECK(order.unfinished() == std::vector<size_t>{2});
    CHECK(order.mark_final(2, 32, 9));
    CHECK(!order.mark_final(2, 32, 10));
    CHECK(order.take_next() == 3);
    CHECK(!order.take_next());
    CHECK(order.unfinished().empty());
    const int64_t expected[] = {8, 5, 7, 9};
    for (size_t b = 0; b < 4; ++b) CHECK(order.ready_ns(b) == expected[b]);
  }
}

TEST_CASE("ddp order: a bucket is updated after what is added to it, or after the last one") {
  auto tensors = vectors({16, 16, 16});
  tensors.push_back({.name = "rows", .shape = {16}, .adds_to = 1});
  const BucketLayout layout = make_layout(tensors, 4, {.bytes = 64, .small_bytes = 64});
  const BucketOrder each(tensors, layout, true), all(tensors, layout, false);
  using Buckets = std::vector<size_t>;
  const Buckets of_each[] = {{0}, {}, {2}, {1, 3}}, of_all[] = {{}, {}, {}, {0, 1, 2, 3}};
  for (size_t b = 0; b < 4; ++b) {
    CHECK(each.updated_after(b) == of_each[b]);
    CHECK(all.updated_after(b) == of_all[b]);
  }
}
