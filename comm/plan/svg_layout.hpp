// Where the parts of a picture lie on the page, in pixels: computed before anything is drawn, from
// the widths of its texts and the number of its arrows.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "comm/plan/picture.hpp"

namespace rondo::plan {

inline constexpr double kLabelSize = 10.5, kSmallSize = 10;  // of text in boxes
inline constexpr double kBoxHeight = 34, kNumberRadius = 8;
inline constexpr double kLeft = 20, kTop = 96;  // the margin, and the top without the titles

struct SvgPoint {
  double x, y;
};

/// An arrow's way, as cubic curves that continue each other, and the centre of its number.
struct Route {
  std::vector<std::array<SvgPoint, 4>> curves;
  SvgPoint number;
};

struct SvgLayout {
  double box_width, column;   // width of a box; of a rank's column with half a gutter on each side
  std::vector<double> tops;   // [level] y of its boxes' upper edge
  double bottom;              // y below which nothing is
  std::vector<Route> routes;  // [arrow]

  double x_of(int rank) const { return kLeft + column * (rank + 0.5); }
};

SvgLayout layout_of(const Picture& picture);

/// A box's second line: the chunk, and of a reduction whose contributions it contains.
std::string chunk_text(const Box& box, int ranks);

}  // namespace rondo::plan
