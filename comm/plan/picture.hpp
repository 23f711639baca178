// The picture of a schedule: ranks as columns, time downwards, an arrow for whatever passes between
// two ranks. One slice of one round; what is drawn at one height may happen at the same time.
#pragma once

#include <string>
#include <vector>

#include "comm/schedule/schedule.hpp"

namespace rondo::plan {

/// More columns than these cannot be read.
inline constexpr int kMostRanksDrawn = 16;

/// A step, or several waits in a row, at its height.
struct Box {
  int rank;
  int level;  // 0 is the top
  std::string label;
  int chunk = -1;  // -1: none
  bool reduces = false, finishes = false;
};

/// Through a slot from one box to another; or, where a peer's buffer is touched in place, between
/// the box that does it and that peer's column, at the height of the box.
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
};

/// REQUIRES: the schedules of all ranks, in rank order, which come to an end (the verifier says).
Picture picture_of(const std::vector<schedule::Schedule>& schedules);

/// An SVG document that needs nothing else; drawn on a ground of its own, so that it is as legible
/// in a dark viewer.
std::string to_svg(const Picture& picture, const std::string& title, const std::string& subtitle);

}  // namespace rondo::plan
