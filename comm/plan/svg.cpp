// Drawing only: boxes in columns, arrows between them, chunk numbers on both.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "comm/plan/picture.hpp"

namespace rondo::plan {
namespace {

constexpr double kColumn = 190, kRow = 68, kTallRow = 112, kBoxWidth = 146, kBoxHeight = 34;
constexpr double kLeft = 20, kTop = 96, kBottom = 66, kNumberRadius = 8;

// Colours of chunks, repeating. Dark enough to be legible on white, as text too.
constexpr const char* kColours[] = {"#1f5fa8", "#b3500b", "#2b7a34", "#a4243b",
                                    "#6b3fa0", "#7a5c12", "#0f7478", "#8f3277"};

std::string colour_of(int chunk) {
  return chunk < 0 ? "#555555" : kColours[static_cast<size_t>(chunk) % std::size(kColours)];
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

double x_of(int rank) { return kLeft + kColumn * (rank + 0.5); }
double y_of(int level, double row) { return kTop + row * (level + 0.5); }

struct SvgPoint {
  double x, y;
};

/// Along a cubic curve.
SvgPoint on_curve(const SvgPoint (&p)[4], double t) {
  const double u = 1 - t;
  const double b[4] = {u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t};
  SvgPoint at{0, 0};
  for (int i = 0; i < 4; ++i) at.x += b[i] * p[i].x, at.y += b[i] * p[i].y;
  return at;
}

/// The best position of its chunk number on the curve: in the middle between neighbours; on longer
/// arrows where they pass the first column.
double best_label(const Arrow& a, const SvgPoint (&p)[4]) {
  if (std::abs(a.to_rank - a.from_rank) <= 1) return 0.5;
  const double column = x_of(a.from_rank + (a.to_rank > a.from_rank ? 1 : -1));
  const bool right = p[3].x > p[0].x;
  double t = 0;
  while (t < 1 && (right ? on_curve(p, t).x < column : on_curve(p, t).x > column)) t += 0.01;
  return t;
}

/// The positions of numbers, so that none lies on another or under a box.
class Places {
 public:
  Places(const std::vector<Box>& boxes, double row) : boxes_(boxes), row_(row) {}
  void take(const SvgPoint& at) { taken_.push_back(at); }
  /// The free position on the curve nearest to `best`, or `best` if there is none.
  SvgPoint find(const SvgPoint (&p)[4], double best) const {
    for (double off = 0; off <= 1; off += 0.01) {
      for (const double t : {best + off, best - off}) {
        if (t >= 0 && t <= 1 && is_free(on_curve(p, t))) return on_curve(p, t);
      }
    }
    return on_curve(p, best);
  }

 private:
  bool is_free(const SvgPoint& at) const {
    const auto touches = [&](const SvgPoint& other) {
      return std::hypot(at.x - other.x, at.y - other.y) < 2 * kNumberRadius + 2;
    };
    const auto covers = [&](const Box& box) {
      return std::abs(at.x - x_of(box.rank)) < kBoxWidth / 2 + kNumberRadius &&
             std::abs(at.y - y_of(box.level, row_)) < kBoxHeight / 2 + kNumberRadius;
    };
    return std::none_of(taken_.begin(), taken_.end(), touches) &&
           std::none_of(boxes_.begin(), boxes_.end(), covers);
  }

  const std::vector<Box>& boxes_;
  const double row_;
  std::vector<SvgPoint> taken_;
};

/// Numbers are drawn after all lines, which would cross them out.
struct Drawn {
  std::string line, number;
};

/// From the lower edge of one box to the upper edge of another. In place, one end is the peer's
/// column, in the gap above or below the box, and every rank that accesses it there has its own
/// position; if there are many, every second one is nearer to the box.
Drawn arrow_svg(const Arrow& a, double row, int ranks, Places& places) {
  const double side = a.to_rank > a.from_rank ? 1 : -1;
  const double wanted = 2 * kNumberRadius + 2, spread = std::min(wanted, kBoxWidth / ranks);
  const auto place = [&](int peer, int rank) {
    return x_of(peer) + (rank - (ranks - 1) / 2.0) * spread;
  };
  const auto gap = [&](int rank) {
    return row / 2 - 10 - (spread < wanted && rank % 2 == 1 ? wanted : 0);
  };
  SvgPoint p[4];
  p[0] = {x_of(a.from_rank) + side * kBoxWidth / 4, y_of(a.from_level, row) + kBoxHeight / 2};
  p[3] = {x_of(a.to_rank) - side * kBoxWidth / 4, y_of(a.to_level, row) - kBoxHeight / 2};
  if (a.by == By::kPull) {
    p[0] = {place(a.from_rank, a.to_rank), y_of(a.to_level, row) - gap(a.to_rank)};
  }
  if (a.by == By::kPush) {
    p[3] = {place(a.to_rank, a.from_rank), y_of(a.from_level, row) + gap(a.from_rank)};
  }
  const double bend = std::max(12.0, (p[3].y - p[0].y) * 0.45);
  p[1] = {p[0].x, p[0].y + bend};
  p[2] = {p[3].x, p[3].y - bend};
  const std::string colour = colour_of(a.chunk);
  const SvgPoint label = a.by == By::kPull   ? p[0]
                         : a.by == By::kPush ? SvgPoint{p[3].x, p[3].y + kNumberRadius}
                                             : places.find(p, best_label(a, p));
  places.take(label);
  return {
      .line = fmt::format("<path d=\"M{:.1f} {:.1f} C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\" "
                          "fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{} "
                          "marker-end=\"url(#head{})\"/>\n",
                          p[0].x, p[0].y, p[1].x, p[1].y, p[2].x, p[2].y, p[3].x, p[3].y, colour,
                          a.by == By::kSlot ? "" : " stroke-dasharray=\"5 3\"",
                          static_cast<size_t>(std::max(a.chunk, 0)) % std::size(kColours)),
      .number = fmt::format(
          "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"{5}\" fill=\"#ffffff\" stroke=\"{2}\"/>"
          "<text x=\"{0:.1f}\" y=\"{3:.1f}\" class=\"small\" style=\"fill:{2}\">{4}</text>\n",
          label.x, label.y, colour, label.y + 3.5, a.chunk, kNumberRadius)};
}

std::string box_svg(const Box& box, double row) {
  const double x = x_of(box.rank) - kBoxWidth / 2, y = y_of(box.level, row) - kBoxHeight / 2;
  const std::string colour = colour_of(box.chunk);
  std::string svg = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{}\" "
      "stroke=\"{}\" stroke-width=\"{}\"/>\n",
      x, y, kBoxWidth, kBoxHeight, box.reduces ? "#fff0c2" : "#f4f4f4", colour,
      box.finishes ? 3 : 1.4);
  const bool one_line = box.chunk < 0;
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"step\">{}</text>\n", x_of(box.rank),
                     y + (one_line ? 21 : 14), escaped(box.label));
  if (!one_line) {
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"small\" style=\"fill:{}\">{}chunk {}{}</text>\n",
        x_of(box.rank), y + 28, colour, box.reduces ? "\xE2\x88\x91 " : "", box.chunk,
        box.finishes ? " finished" : "");
  }
  return svg;
}

std::string heads() {
  std::string svg = "<defs>";
  for (size_t i = 0; i < std::size(kColours); ++i) {
    svg += fmt::format(
        "<marker id=\"head{}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
        "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"{}\"/></marker>",
        i, kColours[i]);
  }
  return svg + "</defs>\n";
}

std::string column_svg(int rank, double height) {
  return fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#c8c8c8\"/>\n"
      "<text x=\"{0:.1f}\" y=\"{3}\" class=\"rank\">rank {4}</text>\n",
      x_of(rank), kTop - 8, height - kBottom + 6, kTop - 16, rank);
}

}  // namespace

std::string to_svg(const Picture& picture, const std::string& title, const std::string& subtitle) {
  const double width = std::max(2 * kLeft + kColumn * picture.ranks, 640.0);
  const bool in_place = std::any_of(picture.arrows.begin(), picture.arrows.end(),
                                    [](const Arrow& a) { return a.by != By::kSlot; });
  const double row = in_place ? kTallRow : kRow;
  const double height = kTop + row * picture.levels + kBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n"
      "<style>text{{font-family:DejaVu Sans,Verdana,sans-serif;text-anchor:middle;fill:#1a1a1a}}"
      ".title{{font-size:16px;font-weight:bold;text-anchor:start}}"
      ".note{{font-size:11px;text-anchor:start;fill:#444444}}"
      ".rank{{font-size:13px;font-weight:bold}}.step{{font-size:10.5px}}"
      ".small{{font-size:10px}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height, escaped(title));
  svg += heads();
  svg += fmt::format(
      "<text x=\"{0}\" y=\"28\" class=\"title\">{1}</text>\n"
      "<text x=\"{0}\" y=\"48\" class=\"note\">{2}</text>\n",
      kLeft, escaped(title), escaped(subtitle));
  for (int r = 0; r < picture.ranks; ++r) svg += column_svg(r, height);
  std::string numbers;
  Places places(picture.boxes, row);
  for (const Arrow& a : picture.arrows) {
    const Drawn drawn = arrow_svg(a, row, picture.ranks, places);
    svg += drawn.line;
    numbers += drawn.number;
  }
  svg += numbers;
  for (const Box& box : picture.boxes) svg += box_svg(box, row);
  svg += fmt::format(
      "<text x=\"{0}\" y=\"{1:.1f}\" class=\"note\">Time goes down. An arrow is one slice of the "
      "chunk "
      "whose number it bears, through a slot; dashed: a peer's buffer read or written in "
      "place.</text>\n"
      "<text x=\"{0}\" y=\"{2:.1f}\" class=\"note\">Yellow: contributions are folded. Thick frame: "
      "the "
      "chunk is finished there.</text>\n</svg>\n",
      kLeft, height - 32, height - 15);
  return svg;
}

}  // namespace rondo::plan
