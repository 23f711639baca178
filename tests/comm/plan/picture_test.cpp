// The picture: when things happen, and that nothing is left out.
#include "comm/plan/picture.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "comm/plan/text_width.hpp"
#include "tests/comm/plan/text.hpp"
#include "tests/comm/schedule/builtins.hpp"

namespace rondo::plan::test {
namespace {

using schedule::test::builtins;
using schedule::test::says;

std::vector<schedule::Schedule> schedules(Collective collective, Algorithm algorithm, int ranks) {
  std::vector<schedule::Schedule> all;
  for (int r = 0; r < ranks; ++r) {
    auto built = algorithms::build(collective, algorithm, ranks, r, 0);
    REQUIRE(built.ok());
    all.push_back(std::move(*built));
  }
  return all;
}

struct Place {
  double x, y, width, height;
};

/// Those of all elements that begin like this.
std::vector<Place> places(const std::string& svg, const std::string& begin, const char* format) {
  std::vector<Place> found;
  for (size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1)) {
    Place place{};
    REQUIRE(std::sscanf(svg.c_str() + at + begin.size(), format, &place.x, &place.y, &place.width,
                        &place.height) >= 2);
    found.push_back(place);
  }
  return found;
}

}  // namespace

TEST_CASE("a ring all-reduce is 2(N-1) hops high, with an arrow for every hop of every rank") {
  for (const int n : {2, 3, 4, 8}) {
    const Picture picture = picture_of(schedules(Collective::kAllReduce, Algorithm::kRing, n));
    CHECK(picture.levels == 2 * (n - 1) + 1);
    CHECK(picture.arrows.size() == static_cast<size_t>(n * 2 * (n - 1)));
    for (const Arrow& a : picture.arrows) {
      CHECK(a.to_rank == (a.from_rank + 1) % n);
      CHECK(a.to_level == a.from_level + 1);
      CHECK(a.by == By::kSlot);
    }
  }
}

TEST_CASE(
    "every move and signal has a box, no two share a place, and slots arrive after they leave") {
  for (const auto& [collective, algorithm] : builtins()) {
    for (const int n : {2, 3, 5, 8}) {
      INFO(name(algorithm) << " " << name(collective) << ", " << n << " ranks");
      const auto all = schedules(collective, algorithm, n);
      const Picture picture = picture_of(all);
      size_t steps = 0, boxes = 0;
      for (const auto& s : all) {
        for (const auto& step : s.steps) steps += step.action != schedule::Action::kWait;
      }
      std::set<std::pair<int, int>> places;
      for (const Box& box : picture.boxes) {
        boxes += !box.label.starts_with("wait");
        CHECK(places.emplace(box.rank, box.level).second);
        CHECK(box.level < picture.levels);
      }
      CHECK(boxes == steps);
      for (const Arrow& a : picture.arrows) {
        CHECK(a.from_rank != a.to_rank);
        if (a.by == By::kSlot) CHECK(a.to_level > a.from_level);
      }
    }
  }
}

TEST_CASE("of a reduction every box says whose contributions it holds") {
  for (const auto& [collective, algorithm] : builtins()) {
    INFO(name(algorithm) << " " << name(collective));
    const Picture picture = picture_of(schedules(collective, algorithm, 5));
    for (const Box& box : picture.boxes) {
      const bool reduces = internal::form_of(collective).reduces;
      if (!reduces) CHECK(box.holds.empty());
      if (reduces && box.finishes) CHECK(box.holds.size() == 5);
    }
  }
  const Picture ring = picture_of(schedules(Collective::kAllReduce, Algorithm::kRing, 4));
  for (const Box& box : ring.boxes) {
    const std::set<int> whose =
        box.level == 0   ? std::set<int>{box.rank}
        : box.level == 1 ? std::set<int>{(box.rank + 3) % 4, box.rank}
        : box.level == 2 ? std::set<int>{(box.rank + 2) % 4, (box.rank + 3) % 4, box.rank}
                         : std::set<int>{0, 1, 2, 3};
    CHECK(box.holds == whose);
    CHECK(box.sends == (box.level < 6 ? 1 : 0));
  }
}

TEST_CASE("one hop is two rows, and what passes between them") {
  const Picture ring = picture_of(schedules(Collective::kAllReduce, Algorithm::kRing, 4));
  REQUIRE(ring.hops() == 6);
  for (int hop = 1; hop <= 6; ++hop) {
    const Picture part = only_hop(ring, hop);
    CHECK(part.levels == 2);
    CHECK(part.boxes.size() == 8);
    CHECK(part.arrows.size() == 4);
    for (const Box& box : part.boxes)
      CHECK((box.finishes == (hop == 3 ? box.level == 1 : hop == 4 && box.level == 0)));
    for (const Arrow& a : part.arrows) CHECK((a.from_level == 0 && a.to_level == 1));
  }
}

TEST_CASE("text is measured by the font, and broken where it would be too wide") {
  CHECK(text_width("", 10) == 0);
  CHECK(text_width("MM", 2048) == 2 * 1767);
  CHECK(text_width("M", 2048, Weight::kBold) == 2038);
  CHECK(text_width("\xE2\x88\x91", 10) == 10);  // one character, not three
  const std::string text = "an arrow is one slice of a chunk";
  std::string joined;
  for (const std::string& line : wrapped(text, 10, 60)) {
    CHECK(text_width(line, 10) <= 60);
    joined += (joined.empty() ? "" : " ") + line;
  }
  CHECK(joined == text);
  CHECK(wrapped(text, 10, 1000).size() == 1);
  CHECK(wrapped("indivisible", 10, 5) == std::vector<std::string>{"indivisible"});
}

TEST_CASE("every number can be read: none lies on another one, or under a box") {
  const std::vector<std::pair<Algorithm, int>> drawn = {
      {Algorithm::kRing, 4},          {Algorithm::kRing, 8},          {Algorithm::kRing, 16},
      {Algorithm::kTree, 7},          {Algorithm::kTree, 16},         {Algorithm::kTwoShot, 4},
      {Algorithm::kTwoShot, 5},       {Algorithm::kOneShot, 4},       {Algorithm::kStar, 6},
      {Algorithm::kTwoShotDirect, 4}, {Algorithm::kTwoShotDirect, 16}};
  for (const auto& [algorithm, n] : drawn) {
    INFO(name(algorithm) << ", " << n << " ranks");
    const std::string svg = to_svg(picture_of(schedules(Collective::kAllReduce, algorithm, n)), {});
    const auto numbers = places(svg, "<circle ", "cx=\"%lf\" cy=\"%lf\"");
    const auto boxes = places(svg, "<rect x=", "\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"");
    REQUIRE_FALSE(numbers.empty());
    REQUIRE_FALSE(boxes.empty());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Place& a = numbers[i];
      for (size_t k = 0; k < i; ++k) {
        INFO(a.x << ", " << a.y << " and " << numbers[k].x << ", " << numbers[k].y);
        CHECK(std::hypot(a.x - numbers[k].x, a.y - numbers[k].y) >= 16);
      }
      for (const Place& box : boxes) {
        INFO(a.x << ", " << a.y << " and the box at " << box.x << ", " << box.y);
        CHECK((a.x <= box.x - 8 || a.x >= box.x + box.width + 8 || a.y <= box.y - 8 ||
               a.y >= box.y + box.height + 8));
      }
    }
  }
}

TEST_CASE("the drawing has all boxes and arrows, and says what was reduced") {
  const Picture picture = picture_of(schedules(Collective::kAllReduce, Algorithm::kTwoShot, 4));
  const std::string svg =
      to_svg(picture, {.title = "a <title> & more", .subtitle = "", .notes = {}});
  CHECK_THAT(svg, says("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK_THAT(svg, says("a &lt;title&gt; &amp; more"));
  CHECK(occurrences(svg, "<rect ") == picture.boxes.size() + 1);  // and the ground
  CHECK(occurrences(svg, "marker-end") == picture.arrows.size());
  CHECK(occurrences(svg, "\xE2\x88\x91") == 4);  // each rank reduces its chunk
  CHECK(occurrences(svg, " finished</text>") == 4);
  CHECK(occurrences(svg, ">rank 3</text>") == 1);
}

}  // namespace rondo::plan::test
