// See svg_layout.hpp. An arrow to the next level runs through the gap between the two. A longer one
// crosses to the gutter between two columns in the first gap or in the last, and runs down there
// in a lane of its own, so that no arrow crosses a box.
#include "comm/plan/svg_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "comm/plan/text_width.hpp"

namespace rondo::plan {
namespace {

constexpr double kLeastBoxWidth = 146, kPadding = 8;  // beside the text in a box
constexpr double kLeastGap = 34, kLeastGutter = 44, kLane = 6;
// In place, the far end of an arrow lies this far from the boxes; if the ends are many, every
// second one lies nearer.
constexpr double kFar = 29, kNear = 11;
constexpr double kPullHeight = kFar + kNumberRadius + 3, kPushHeight = kFar + 2 * kNumberRadius + 4;

bool is_long(const Arrow& a) { return a.by == By::kSlot && a.to_level > a.from_level + 1; }

/// A long arrow's way down: the gutter left of column `gutter`, and its lane there.
struct Descent {
  int gutter = 0, lane = 0;
};

class LayoutMaker {
 public:
  explicit LayoutMaker(const Picture& picture) : picture_(picture) {}

  SvgLayout run() {
    measure_boxes();
    choose_gutters();
    choose_lanes();
    place_levels();
    place_ends();
    for (size_t i = 0; i < arrows().size(); ++i) layout_.routes.push_back({curves_of(i), {}});
    place_numbers();
    return std::move(layout_);
  }

 private:
  const std::vector<Arrow>& arrows() const { return picture_.arrows; }

  void measure_boxes() {
    double width = kLeastBoxWidth - 2 * kPadding;
    for (const Box& box : picture_.boxes) {
      width = std::max({width, text_width(box.label, kLabelSize),
                        text_width(chunk_text(box, picture_.ranks), kSmallSize)});
    }
    layout_.box_width = std::ceil(width + 2 * kPadding);
  }

  /// Beside the target's column where more arrows arrive at its level than leave the source's, so
  /// that they cross in several gaps; else beside the source's.
  void choose_gutters() {
    std::map<int, int> leave, arrive;
    for (const Arrow& a : arrows()) ++leave[a.from_level], ++arrive[a.to_level];
    descents_.resize(arrows().size());
    for (size_t i = 0; i < arrows().size(); ++i) {
      const Arrow& a = arrows()[i];
      const bool right = a.to_rank > a.from_rank;
      const bool at_target = arrive[a.to_level] >= leave[a.from_level];
      descents_[i].gutter = at_target ? a.to_rank + (right ? 0 : 1) : a.from_rank + (right ? 1 : 0);
    }
  }

  /// Arrows share a lane of a gutter if they pass different levels.
  void choose_lanes() {
    std::vector<std::vector<int>> free_from(static_cast<size_t>(picture_.ranks) + 1);  // [lane]
    std::vector<size_t> order;
    for (size_t i = 0; i < arrows().size(); ++i) {
      if (is_long(arrows()[i])) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return arrows()[a].from_level < arrows()[b].from_level;
    });
    size_t most = 0;
    for (const size_t i : order) {
      auto& lanes = free_from[static_cast<size_t>(descents_[i].gutter)];
      const auto lane = std::find_if(lanes.begin(), lanes.end(),
                                     [&](int level) { return level <= arrows()[i].from_level; });
      descents_[i].lane = static_cast<int>(lane - lanes.begin());
      if (lane == lanes.end()) lanes.push_back(0);
      lanes[static_cast<size_t>(descents_[i].lane)] = arrows()[i].to_level - 1;
      most = std::max(most, lanes.size());
    }
    for (const auto& lanes : free_from) lanes_.push_back(static_cast<int>(lanes.size()));
    layout_.column =
        layout_.box_width + std::max(kLeastGutter, kLane * static_cast<double>(most) + kLane * 2);
  }

  double gutter_x(size_t i) const {
    const Descent& d = descents_[i];
    const int lanes = lanes_[static_cast<size_t>(d.gutter)];
    return kLeft + layout_.column * d.gutter + kLane * (d.lane - (lanes - 1) / 2.0);
  }

  /// A gap grows with the arrows that cross it.
  void place_levels() {
    const auto levels = static_cast<size_t>(picture_.levels);
    std::vector<int> cross(levels), pulls(levels), pushes(levels);
    for (const Arrow& a : arrows()) {
      const auto from = static_cast<size_t>(a.from_level), to = static_cast<size_t>(a.to_level);
      if (a.by == By::kPull) ++pulls[to];
      if (a.by == By::kPush) ++pushes[from];
      if (a.by == By::kSlot) ++cross[from];
      if (is_long(a)) ++cross[to - 1];
    }
    double y = kTop + 10;
    for (size_t l = 0; l < levels; ++l) {
      y += pulls[l] > 0 ? kPullHeight : 0;
      layout_.tops.push_back(y);
      y += kBoxHeight + (pushes[l] > 0 ? kPushHeight : 0);
      layout_.bottom = y;
      y += kLeastGap + std::clamp(1.2 * (cross[l] - 2 * picture_.ranks), 0.0, 90.0);
    }
  }

  double top(int level) const { return layout_.tops[static_cast<size_t>(level)]; }
  double below(int level) const { return top(level) + kBoxHeight; }

  /// The x of an in-place arrow's far end, in the peer's column: every rank has its own.
  double far_x(int peer, int rank) const {
    return layout_.x_of(peer) + (rank - (picture_.ranks - 1) / 2.0) * far_spacing();
  }
  double far_spacing() const {
    return std::min(2 * kNumberRadius + 2, layout_.box_width / picture_.ranks);
  }
  double far_distance(int rank) const {
    return far_spacing() < 2 * kNumberRadius + 2 && rank % 2 == 1 ? kNear : kFar;
  }

  /// Arrows begin and end side by side on the edge of their box, in the order of where they go to
  /// or come from.
  void place_ends() {
    using Edge = std::map<std::pair<int, int>, std::vector<std::pair<double, size_t>>>;
    Edge lower, upper;  // by rank and level; x of the other side, arrow
    begins_.resize(arrows().size());
    ends_.resize(arrows().size());
    for (size_t i = 0; i < arrows().size(); ++i) {
      const Arrow& a = arrows()[i];
      const bool pull = a.by == By::kPull, push = a.by == By::kPush;
      begins_[i] = far_x(a.from_rank, a.to_rank);
      ends_[i] = far_x(a.to_rank, a.from_rank);
      const double goes_to = is_long(a) ? gutter_x(i) : push ? ends_[i] : layout_.x_of(a.to_rank);
      const double from = is_long(a) ? gutter_x(i) : pull ? begins_[i] : layout_.x_of(a.from_rank);
      if (!pull) lower[{a.from_rank, a.from_level}].emplace_back(goes_to, i);
      if (!push) upper[{a.to_rank, a.to_level}].emplace_back(from, i);
    }
    for (auto& [box, others] : lower) spread(layout_.x_of(box.first), others, begins_);
    for (auto& [box, others] : upper) spread(layout_.x_of(box.first), others, ends_);
  }

  void spread(double x, std::vector<std::pair<double, size_t>>& others,
              std::vector<double>& places) const {
    std::sort(others.begin(), others.end());
    const auto left = static_cast<size_t>(
        std::count_if(others.begin(), others.end(), [&](const auto& o) { return o.first < x; }));
    const double half = layout_.box_width / 2;
    for (size_t i = 0; i < others.size(); ++i) {
      const bool on_left = i < left;
      const auto rank = static_cast<double>(on_left ? i : i - left) + 1;
      const auto parts = static_cast<double>(on_left ? left : others.size() - left) + 1;
      places[others[i].second] = x - (on_left ? half : 0) + half * rank / parts;
    }
  }

  /// Vertical at both ends.
  static std::array<SvgPoint, 4> bend(SvgPoint from, SvgPoint to) {
    const double by = std::max(6.0, (to.y - from.y) * 0.45);
    return {from, {from.x, from.y + by}, {to.x, to.y - by}, to};
  }

  std::vector<std::array<SvgPoint, 4>> curves_of(size_t i) const {
    const Arrow& a = arrows()[i];
    const SvgPoint begin{begins_[i], a.by == By::kPull ? top(a.to_level) - far_distance(a.to_rank)
                                                       : below(a.from_level)};
    const SvgPoint end{ends_[i], a.by == By::kPush ? below(a.from_level) + far_distance(a.from_rank)
                                                   : top(a.to_level)};
    if (!is_long(a)) return {bend(begin, end)};
    const SvgPoint enter{gutter_x(i), top(a.from_level + 1)};
    const SvgPoint leave{gutter_x(i), below(a.to_level - 1)};
    return {bend(begin, enter), {enter, enter, leave, leave}, bend(leave, end)};
  }

  /// About two pixels apart.
  static std::vector<SvgPoint> points_on(const Route& route) {
    std::vector<SvgPoint> points;
    for (const auto& p : route.curves) {
      const double length = std::abs(p[3].x - p[0].x) + std::abs(p[3].y - p[0].y);
      const int steps = std::max(4, static_cast<int>(length / 2));
      for (int k = 0; k <= steps; ++k) {
        const double t = static_cast<double>(k) / steps, u = 1 - t;
        const double b[4] = {u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t};
        SvgPoint at{0, 0};
        for (size_t c = 0; c < 4; ++c) at.x += b[c] * p[c].x, at.y += b[c] * p[c].y;
        points.push_back(at);
      }
    }
    return points;
  }

  /// Those at far ends have fixed places; the others take the free one on their arrow that is
  /// nearest to the best.
  void place_numbers() {
    std::vector<SvgPoint> taken;
    for (size_t i = 0; i < arrows().size(); ++i) {
      Route& route = layout_.routes[i];
      const By by = arrows()[i].by;
      if (by == By::kSlot) continue;
      const SvgPoint end = route.curves.back()[3];
      route.number =
          by == By::kPull ? route.curves[0][0] : SvgPoint{end.x, end.y + kNumberRadius + 1};
      taken.push_back(route.number);
    }
    for (size_t i = 0; i < arrows().size(); ++i) {
      if (arrows()[i].by != By::kSlot) continue;
      Route& route = layout_.routes[i];
      const std::vector<SvgPoint> points = points_on(route);
      const size_t best = best_place(arrows()[i], points.size());
      route.number = points[best];
      for (size_t off = 0; off < points.size(); ++off) {
        const SvgPoint before = points[best - std::min(off, best)];
        const SvgPoint after = points[std::min(best + off, points.size() - 1)];
        const bool is_before_free = is_free(before, taken);
        if (!is_before_free && !is_free(after, taken)) continue;
        route.number = is_before_free ? before : after;
        break;
      }
      taken.push_back(route.number);
    }
  }

  /// The middle; where an arrow in one gap passes several columns, the first of them.
  static size_t best_place(const Arrow& a, size_t points) {
    const auto columns = static_cast<size_t>(std::abs(a.to_rank - a.from_rank));
    return is_long(a) || columns < 2 ? points / 2 : points / columns;
  }

  /// Neither on another number, nor under a box, nor on an arrow's head.
  bool is_free(const SvgPoint& at, const std::vector<SvgPoint>& taken) const {
    const auto nearer = [&](const SvgPoint& other, double distance) {
      return std::hypot(at.x - other.x, at.y - other.y) < distance;
    };
    const auto covers = [&](const Box& box) {
      const double y = top(box.level) + kBoxHeight / 2;
      return std::abs(at.x - layout_.x_of(box.rank)) < layout_.box_width / 2 + kNumberRadius &&
             std::abs(at.y - y) < kBoxHeight / 2 + kNumberRadius;
    };
    return std::none_of(taken.begin(), taken.end(),
                        [&](const SvgPoint& p) { return nearer(p, 2 * kNumberRadius + 2); }) &&
           std::none_of(picture_.boxes.begin(), picture_.boxes.end(), covers) &&
           std::none_of(layout_.routes.begin(), layout_.routes.end(), [&](const Route& r) {
             return nearer(r.curves.back()[3], kNumberRadius + 4);
           });
  }

  const Picture& picture_;
  SvgLayout layout_{};
  std::vector<Descent> descents_;      // [arrow]
  std::vector<int> lanes_;             // [gutter]
  std::vector<double> begins_, ends_;  // [arrow] x
};

}  // namespace

SvgLayout layout_of(const Picture& picture) { return LayoutMaker(picture).run(); }

std::string chunk_text(const Box& box, int ranks) {
  if (box.chunk < 0) return {};
  std::string text = fmt::format("{}chunk {}", box.reduces ? "\xE2\x88\x91 " : "", box.chunk);
  if (box.finishes) return text + " finished";
  const size_t held = box.holds.size();
  if (held == 0) return text;
  if (held == static_cast<size_t>(ranks)) return text + " of all";
  if (held > 4) return text + fmt::format(" of {} ranks", held);
  return text + fmt::format(" of {}{}", held == 1 ? "rank " : "", fmt::join(box.holds, "+"));
}

}  // namespace rondo::plan
