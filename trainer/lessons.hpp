// Mistakes that data parallelism invites, one lesson each: a healthy run, a broken one, the numbers
// that give it away, and what to look at first. A table; what is done with it is teach.hpp's.
#pragma once

#include <string>
#include <vector>

#include "trainer/lesson_run.hpp"

namespace rondo::trainer {

struct Lesson {
  const char* name;  // also the heading in TROUBLESHOOTING.md
  const char* broken;
  std::vector<std::string> common;  // flags of all runs; "{folder}" and "{run}" are replaced
  struct Variant {
    const char* name;
    std::vector<std::string> flags;
  };
  std::vector<Variant> variants;  // the healthy one first
  struct Figure {
    const char* name;
    std::string (*of)(const LessonRun& run);
  };
  std::vector<Figure> figures;
  /// Whether the symptom is there: healthy run first. Rests on bytes, counts, orders of events,
  /// deterministic losses, and delays that were put in, never on how fast this machine is.
  bool (*shows)(const std::vector<LessonRun>& runs);
  const char* look_first;
  /// Whether the broken run exposes more communication, as it does where nobody else computes.
  bool exposes_more = false;
};

/// What the table shows but shows() does not rest on, where it contradicts the lesson: a sentence,
/// or nothing.
std::string not_judged(const Lesson& lesson, const std::vector<LessonRun>& runs);

const std::vector<Lesson>& lessons();

}  // namespace rondo::trainer
