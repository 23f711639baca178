// The time of each step if every step takes one unit: one later than the step before it on its
// rank, and than the data it takes from others.
#include "comm/plan/picture.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

namespace rondo::plan {
namespace {

using schedule::Action;
using schedule::Flag;
using schedule::Operand;
using schedule::OperandKind;
using schedule::Schedule;
using schedule::Step;

class Layout {
 public:
  explicit Layout(const std::vector<Schedule>& schedules)
      : schedules_(schedules),
        at_(schedules.size()),
        next_level_(schedules.size()),
        signals_(schedules.size()),
        waits_(schedules.size()) {
    picture_.ranks = static_cast<int>(schedules.size());
  }

  Picture run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < schedules_.size(); ++r) {
        while (at_[r] < schedules_[r].steps.size() && ready(r)) {
          carry_out(r);
          ++at_[r];
          progress = true;
        }
      }
    }
    for (Box& box : picture_.boxes) {
      picture_.levels = std::max(picture_.levels, box.level + 1);
      const auto peers = 1 + std::count(box.label.begin(), box.label.end(), ',');
      if (peers > 1 && peers == picture_.ranks - 1) {
        box.label = box.label.substr(0, box.label.find(' ')) + " all";
      }
    }
    return std::move(picture_);
  }

 private:
  using Members = std::set<int>;
  /// The data in flight from one rank to another: the level at which each was sent, and the ranks
  /// whose contributions it contains.
  struct Sent {
    int level;
    Members members;
  };
  using Queue = std::deque<Sent>;

  Queue& queue(const Operand& o, int from, int to) {
    return queues_[{o.place == OperandKind::kPublished, from, to}];
  }
  const Step& step(size_t r) const { return schedules_[r].steps[at_[r]]; }

  bool ready(size_t r) {
    const Step& s = step(r);
    const auto peer = static_cast<size_t>(std::max(s.peer, 0));
    if (s.action == Action::kWait) {
      return s.flag == Flag::kPosted || signals_[peer].size() >= signals_[r].size();
    }
    return std::all_of(s.sources.begin(), s.sources.end(), [&](const Operand& o) {
      const bool queued = in_slot(o);
      return !queued || !queue(o, o.peer, static_cast<int>(r)).empty();
    });
  }

  void carry_out(size_t r) {
    const Step& s = step(r);
    if (s.action == Action::kWait) return wait(r, s);
    const int rank = static_cast<int>(r);
    int level = next_level_[r];
    std::vector<Arrow> arrows;
    Members members;
    for (const Operand& o : s.sources) {
      members.merge(members_of(o, rank));
      if (in_slot(o)) {
        Queue& incoming = queue(o, o.peer, rank);
        level = std::max(level, incoming.front().level + 1);
        arrows.push_back({o.peer, incoming.front().level, rank, 0, s.chunk});
        incoming.pop_front();
      } else if (in_peer(o)) {
        arrows.push_back({o.peer, 0, rank, 0, s.chunk, By::kPull});
      }
    }
    for (Arrow& arrow : arrows) {
      arrow.to_level = level;
      if (arrow.by == By::kPull) arrow.from_level = level;
      picture_.arrows.push_back(arrow);
    }
    int sends = 0;
    for (const Operand& o : s.destinations) {
      send(o, rank, level, s.chunk, members);
      sends += in_slot(o) || in_peer(o) ? 1 : 0;
    }
    if (s.action == Action::kSignal) signals_[r].push_back(level);
    const bool moves = s.action == Action::kMove;
    picture_.boxes.push_back({.rank = rank,
                              .level = level,
                              .label = schedule::name_of(s),
                              .chunk = moves ? s.chunk : -1,
                              .reduces = s.sources.size() > 1,
                              .finishes = s.finishes,
                              .sends = sends,
                              .holds = std::move(members),
                              .step = at_[r]});
    next_level_[r] = level + 1;
    waits_[r] = 0;
  }

  /// Of what `rank` reads there next; empty if the collective does not reduce.
  Members members_of(const Operand& o, int rank) {
    if (!internal::form_of(schedules_[0].collective).reduces) return {};
    if (in_slot(o)) return queue(o, o.peer, rank).front().members;
    const int owner = in_peer(o) ? o.peer : rank;
    return is_in(o) ? Members{owner} : outs_[{owner, o.chunk}];
  }

  void send(const Operand& o, int rank, int level, int chunk, const Members& members) {
    if (o.place == OperandKind::kSlot) queue(o, rank, o.peer).push_back({level, members});
    for (int p = 0; o.place == OperandKind::kPublished && p < picture_.ranks; ++p) {
      if (p != rank) queue(o, rank, p).push_back({level, members});
    }
    if (is_out(o)) outs_[{in_peer(o) ? o.peer : rank, o.chunk}] = members;
    if (in_peer(o)) {
      picture_.arrows.push_back({rank, level, o.peer, level, chunk, By::kPush});
    }
  }

  /// Consecutive waits are one box: "wait_posted 1,2", or "wait_posted all".
  void wait(size_t r, const Step& s) {
    const int rank = static_cast<int>(r);
    int level = next_level_[r];
    if (s.flag == Flag::kSignalled && !signals_[r].empty()) {
      level = std::max(level, signals_[static_cast<size_t>(s.peer)][signals_[r].size() - 1] + 1);
    }
    const std::string label = schedule::name_of(s);
    if (waits_[r] > 0 && picture_.boxes[waits_[r] - 1].label.starts_with(label)) {
      Box& box = picture_.boxes[waits_[r] - 1];
      box.level = std::max(box.level, level - (level == next_level_[r] ? 1 : 0));
      box.label += ',';
      box.label += std::to_string(s.peer);
      next_level_[r] = box.level + 1;
      return;
    }
    picture_.boxes.push_back({.rank = rank,
                              .level = level,
                              .label = label + " " + std::to_string(s.peer),
                              .step = at_[r]});
    waits_[r] = picture_.boxes.size();
    next_level_[r] = level + 1;
  }

  const std::vector<Schedule>& schedules_;
  Picture picture_;
  std::vector<size_t> at_;
  std::vector<int> next_level_;
  std::vector<std::vector<int>> signals_;               // [rank] levels
  std::vector<size_t> waits_;                           // [rank] 1 + the box that still grows
  std::map<std::tuple<bool, int, int>, Queue> queues_;  // published, from, to
  std::map<std::pair<int, int>, Members> outs_;         // rank, chunk
};

}  // namespace

Picture only_hop(const Picture& picture, int hop) {
  const int first = hop - 1;
  Picture part{.ranks = picture.ranks, .levels = 2, .boxes = {}, .arrows = {}};
  for (Box box : picture.boxes) {
    box.level -= first;
    if (box.level == 0 || box.level == 1) part.boxes.push_back(std::move(box));
  }
  for (Arrow arrow : picture.arrows) {
    arrow.from_level -= first;
    arrow.to_level -= first;
    if (arrow.from_level >= 0 && arrow.to_level <= 1) part.arrows.push_back(arrow);
  }
  return part;
}

Picture picture_of(const std::vector<schedule::Schedule>& schedules) {
  return Layout(schedules).run();
}

}  // namespace rondo::plan
