// Writes the drawing: what svg_layout.cpp has placed, with colours and text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "comm/plan/svg_layout.hpp"
#include "comm/plan/text_width.hpp"

namespace rondo::plan {
namespace {

constexpr double kLeastWidth = 640, kTitleSize = 16, kNoteSize = 11, kNoteHeight = 17;

// Colours of chunks, repeating. Dark enough to be legible on white, as text too.
constexpr const char* kColours[] = {"#1f5fa8", "#b3500b", "#2b7a34", "#a4243b",
                                    "#6b3fa0", "#7a5c12", "#0f7478", "#8f3277"};

size_t colour_index(int chunk) {
  return static_cast<size_t>(std::max(chunk, 0)) % std::size(kColours);
}

std::string colour_of(int chunk) { return chunk < 0 ? "#555555" : kColours[colour_index(chunk)]; }

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

std::string line_svg(const Arrow& a, const Route& route) {
  std::string way = fmt::format("M{:.1f} {:.1f}", route.curves[0][0].x, route.curves[0][0].y);
  for (const auto& p : route.curves) {
    way += fmt::format(" C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", p[1].x, p[1].y, p[2].x,
                       p[2].y, p[3].x, p[3].y);
  }
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{} "
      "marker-end=\"url(#head{})\"/>\n",
      way, colour_of(a.chunk), a.by == By::kSlot ? "" : " stroke-dasharray=\"5 3\"",
      colour_index(a.chunk));
}

std::string number_svg(const Arrow& a, const SvgPoint& at) {
  return fmt::format(
      "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"{5}\" fill=\"#ffffff\" stroke=\"{2}\"/>"
      "<text x=\"{0:.1f}\" y=\"{3:.1f}\" class=\"small\" style=\"fill:{2}\">{4}</text>\n",
      at.x, at.y, colour_of(a.chunk), at.y + 3.5, a.chunk, kNumberRadius);
}

std::string box_svg(const Box& box, const SvgLayout& at, int ranks) {
  const double x = at.x_of(box.rank), y = at.tops[static_cast<size_t>(box.level)];
  const std::string colour = colour_of(box.chunk);
  std::string svg = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{}\" "
      "stroke=\"{}\" stroke-width=\"{}\"/>\n",
      x - at.box_width / 2, y, at.box_width, kBoxHeight, box.reduces ? "#fff0c2" : "#f4f4f4",
      colour, box.finishes ? 3 : 1.4);
  const std::string chunk = chunk_text(box, ranks);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"step\">{}</text>\n", x,
                     y + (chunk.empty() ? 21 : 14), escaped(box.label));
  if (chunk.empty()) return svg;
  return svg + fmt::format(
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"small\" style=\"fill:{}\">{}</text>\n",
                   x, y + 28, colour, chunk);
}

std::string head_svg(double width, double height, const Caption& caption) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n"
      "<style>text{{font-family:DejaVu Sans,Verdana,sans-serif;text-anchor:middle;fill:#1a1a1a}}"
      ".title{{font-size:{4}px;font-weight:bold;text-anchor:start}}"
      ".note{{font-size:{5}px;text-anchor:start;fill:#444444}}"
      ".rank{{font-size:13px;font-weight:bold}}.step{{font-size:{6}px}}"
      ".small{{font-size:{7}px}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"{8}\" y=\"28\" class=\"title\">{2}</text>\n"
      "<text x=\"{8}\" y=\"48\" class=\"note\">{3}</text>\n<defs>",
      width, height, escaped(caption.title), escaped(caption.subtitle), kTitleSize, kNoteSize,
      kLabelSize, kSmallSize, kLeft);
  for (size_t i = 0; i < std::size(kColours); ++i) {
    svg += fmt::format(
        "<marker id=\"head{}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
        "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"{}\"/></marker>",
        i, kColours[i]);
  }
  return svg + "</defs>\n";
}

std::string column_svg(int rank, const SvgLayout& at) {
  return fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#c8c8c8\"/>\n"
      "<text x=\"{0:.1f}\" y=\"{3}\" class=\"rank\">rank {4}</text>\n",
      at.x_of(rank), kTop - 8, at.bottom + 10, kTop - 16, rank);
}

/// What the drawing's signs mean, as far as they occur.
std::string legend(const Picture& picture) {
  const auto any_arrow = [&](auto&& is) {
    return std::any_of(picture.arrows.begin(), picture.arrows.end(), is);
  };
  const auto any_box = [&](auto&& is) {
    return std::any_of(picture.boxes.begin(), picture.boxes.end(), is);
  };
  std::string text = "Time goes down.";
  if (any_arrow([](const Arrow& a) { return a.by == By::kSlot; }))
    text += " An arrow is one slice, through a slot, of the chunk whose number it bears.";
  if (any_arrow([](const Arrow& a) { return a.by != By::kSlot; }))
    text += " A dashed arrow is a peer's buffer that is read or written in place.";
  if (any_box([](const Box& b) { return b.reduces; }))
    text += " Yellow: parts of several ranks are added up.";
  if (any_box([&](const Box& b) { return chunk_text(b, picture.ranks).find('+') != text.npos; }))
    text += " Of 0+1: the parts of ranks 0 and 1.";
  if (any_box([](const Box& b) { return b.finishes; }))
    text += " Thick frame: the chunk is finished there.";
  return text;
}

}  // namespace

std::string to_svg(const Picture& picture, const Caption& caption) {
  const SvgLayout at = layout_of(picture);
  const double title = text_width(caption.title, kTitleSize, Weight::kBold);
  const double subtitle = text_width(caption.subtitle, kNoteSize);
  const double inner = std::max(
      {at.column * picture.ranks, kLeastWidth - 2 * kLeft, std::ceil(title), std::ceil(subtitle)});
  std::vector<std::string> lines;
  const auto add = [&](const std::string& note) {
    for (std::string& line : wrapped(note, kNoteSize, inner)) lines.push_back(std::move(line));
  };
  for (const std::string& note : caption.notes) add(note);
  add(legend(picture));
  const double notes_top = at.bottom + 34;
  const double height = notes_top + kNoteHeight * static_cast<double>(lines.size());

  std::string svg = head_svg(inner + 2 * kLeft, height, caption);
  for (int r = 0; r < picture.ranks; ++r) svg += column_svg(r, at);
  for (const Box& box : picture.boxes) svg += box_svg(box, at, picture.ranks);
  for (size_t i = 0; i < picture.arrows.size(); ++i) {
    svg += line_svg(picture.arrows[i], at.routes[i]);
  }
  // After all lines, which would cross them out.
  for (size_t i = 0; i < picture.arrows.size(); ++i) {
    svg += number_svg(picture.arrows[i], at.routes[i].number);
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" class=\"note\">{}</text>\n", kLeft,
                       notes_top + kNoteHeight * static_cast<double>(i), escaped(lines[i]));
  }
  return svg + "</svg>\n";
}

}  // namespace rondo::plan
