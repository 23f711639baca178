// The picture of a schedule: ranks as columns, time downwards, an arrow for every transfer between
// two ranks. It shows one slice of one round; steps at the same height may happen at the same time.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "comm/schedule/schedule.hpp"

namespace rondo::plan {

/// The maximum number of readable columns.
inline constexpr int kMostRanksDrawn = 16;

/// A step, or several waits in a row, at its height.
struct Box {
  int rank;
  int level;  // 0 is the top
  std::string label;
  int chunk = -1;  // -1: none
  bool reduces = false, finishes = false;
  int sends = 0;             // chunks, counted as schedule::Traffic counts
  std::set<int> holds = {};  // of a reduction: the ranks whose contributions the result contains
  size_t step = 0;           // in the rank's schedule; of several waits the first
};

/// A transfer: through a slot from one box to another; or, if a peer's buffer is accessed in place,
/// between the box that does it and that peer's column, at the height of the box.
enum class By { kSlot, kPull, kPush };
struct Arrow {
  int from_rank, from_level, to_rank, to_level;
  int chunk;
  By by = By::kSlot;
};

struct Picture {
  int ranks = 0, levels = 0;
  std::vector<Box> boxes;
  std::vector<Arrow> arrows;

  /// From one level to the next.
  int hops() const { return levels - 1; }
};

/// REQUIRES: the schedules of all ranks, in rank order, which terminate (the verifier proves it).
Picture picture_of(const std::vector<schedule::Schedule>& schedules);

/// The boxes of levels `hop` - 1 and `hop`, and what passes between them. REQUIRES: 1 <= hop <=
/// hops().
Picture only_hop(const Picture& picture, int hop);

/// What is written above and below a picture.
struct Caption {
  std::string title, subtitle;
  std::vector<std::string> notes;
};

/// A self-contained SVG document with its own background, so that it is legible in a dark viewer
/// too. All text lies inside its box and the page (DejaVu Sans, or a narrower font), no number on
/// another one, and no arrow crosses a box.
std::string to_svg(const Picture& picture, const Caption& caption);

}  // namespace rondo::plan
