// Hierarchical: inside every host, and between hosts along rails (rails.hpp), so that few bytes
// cross the wire and all ranks of a host carry them. H hosts, R rails, N ranks, n of them on a host.
//
// all_reduce, a two-shot inside the hosts and a ring between them. Chunk (h, l) = h * R + l, S/HR,
// is finished on host h by its rank on rail l:
//   1. H times, for the chunks of host h-1, h-2, ... h:
//      send  x R         every rank sends its part of chunk (.., l) to its host's rank on rail l,
//      recv_reduce_send  which folds [what comes from the host before,] the host's parts in rank
//                        order, and sends the sum to the next host. The last fold, of the own chunk,
//                        finishes: recv_reduce_copy_send, to Out, the next host, the host's others.
//   2. H times, for the chunks of host h, h-1, ... h+1:
//      recv_copy_send    what comes from the host before: into Out, to the next host (but the last),
//                        and to the host's others,
//      recv  x R-1       who receive the other rails' chunks.
//   Each rank sends 2(N-1)/N * S bytes as in a ring (equal hosts), of which 2(H-1)/H * S for each
//   host and direction cross the wire, the fewest possible, in 2(H-1) wire hops.
// reduce_scatter is 1 and all_gather is 2, of blocks, N of them: a host's rank number i has its
//   block on rail i mod R, in pass i / R (only hosts of different sizes have a second). The pass is
//   the outer loop: FIFOs of two slots would deadlock otherwise. (N - n) blocks leave a host.
// broadcast: R chunks; the root sends chunk l to its host's rank on rail l, from where it goes down
//   the chain of hosts, and on each host to the host's others. H-1 wire hops, S for each host.
// reduce: the same the other way round.
// all_to_all: a rank sends what is for number i of another host to its own host's number i (modulo
//   n), which forwards it; so ranks have wire links along their rail only, as in NCCL's PXN. Ranks
//   go in step: one send, one forward, one receive in turn, or FIFOs of two slots would deadlock.
//
// Fold order of the chunk of host h: hosts h+1, h+2, ... h, the ranks of each in rank order: it
// depends on how ranks lie on hosts. One rank finishes, all others copy its result. In place: a
// chunk of In is read before, or in the move in which, it is overwritten; all_to_all is NOT, because
// a forwarded block may come before the own one at its place has been sent.
//
// Sources: the split of every phase over all ranks of a host is Träff and Hunold, "Decomposing MPI
// collectives for exploiting multi-lane communication", IEEE CLUSTER 2020, and Bayatpour et al.,
// "Scalable reduction collectives with data partitioning-based multi-leader design", SC'17,
// doi:10.1145/3126908.3126954; NCCL calls them rails.
#include "comm/algorithms/rails.hpp"

namespace rondo::algorithms {
namespace {

/// The parts of the chunks that begin with `first` to the other rails' ranks.
void send_parts(Schedule& s, const Rails& at, int first) {
  at.for_rail_mates([&](int l) {
    s.steps.push_back(move(first + l, {in(first + l)}, {slot(at.mate(l), first + l)}));
  });
}

void hierarchical_all_reduce(Schedule& s) {
  const Rails at(s);
  s.chunks = at.hosts * at.rails;
  const auto first_of = [&](int host) { return around(host, at.hosts) * at.rails; };
  for (int t = 0; t < at.hosts; ++t) {
    const int first = first_of(at.host - 1 - t), c = first + at.local;
    const bool last = t + 1 == at.hosts;
    send_parts(s, at, first);
    if (!at.on_rail()) continue;
    std::vector<Operand> sources;
    if (t > 0) sources.push_back(slot(at.prev(), c));
    std::vector<Operand> to{slot(at.next(), c)};
    if (last) to = slots_to_mates(at, c, {out(c), slot(at.next(), c)});
    s.steps.push_back(move(c, slots_from_host(s, at, c, std::move(sources)), std::move(to), last));
  }
  for (int t = 0; t < at.hosts; ++t) {
    const int first = first_of(at.host - t), c = first + at.local;
    if (at.on_rail() && t > 0) {
      std::vector<Operand> to{out(c)};
      if (t + 1 < at.hosts) to.push_back(slot(at.next(), c));
      s.steps.push_back(move(c, {slot(at.prev(), c)}, slots_to_mates(at, c, std::move(to))));
    }
    at.for_rail_mates([&](int l) {
      s.steps.push_back(move(first + l, {slot(at.mate(l), first + l)}, {out(first + l)}));
    });
  }
}

/// Calls f(pass, t) for every block that passes along the rails of `at`, in order.
template <class F>
void for_passes(const Rails& at, F f) {
  int most = 0;
  for (int h = 0; h < at.hosts; ++h) most = std::max(most, at.ranks_on(h));
  for (int pass = 0; pass * at.rails < most; ++pass) {
    for (int t = 0; t < at.hosts; ++t) f(pass, t);
  }
}

void hierarchical_reduce_scatter(Schedule& s) {
  const Rails at(s);
  s.chunks = s.ranks;
  for_passes(at, [&](int pass, int t) {
    const int of = around(at.host - 1 - t, at.hosts), base = pass * at.rails;
    at.for_rail_mates([&](int l) {
      if (base + l >= at.ranks_on(of)) return;
      const int c = at.rank(of, base + l);
      s.steps.push_back(move(c, {in(c)}, {slot(at.mate(l), c)}));
    });
    if (at.on_rail() && base + at.local < at.ranks_on(of)) {
      const int c = at.rank(of, base + at.local);
      std::vector<Operand> sources;
      if (t > 0) sources.push_back(slot(at.prev(), c));
      const Operand to = of != at.host ? slot(at.next(), c) : c == s.rank ? out(c) : slot(c, c);
      s.steps.push_back(
          move(c, slots_from_host(s, at, c, std::move(sources)), {to}, of == at.host));
    }
    if (of == at.host && pass > 0 && at.local / at.rails == pass) {
      s.steps.push_back(move(s.rank, {slot(at.mate(at.local % at.rails), s.rank)}, {out(s.rank)}));
    }
  });
}

/// The own block, or the one that passes on the own rail.
void pass_block(Schedule& s, const Rails& at, int pass, int t) {
  const int of = around(at.host - t, at.hosts), number = pass * at.rails + at.local;
  if (of == at.host && at.local / at.rails == pass) {
    std::vector<Operand> to{out(s.rank)};
    if (at.on_rail()) to.push_back(slot(at.next(), s.rank));
    s.steps.push_back(move(s.rank, {in(s.rank)}, slots_to_mates(at, s.rank, std::move(to))));
  } else if (at.on_rail() && number < at.ranks_on(of)) {
    const int c = at.rank(of, number);
    std::vector<Operand> to{out(c)};
    if (t + 1 < at.hosts) to.push_back(slot(at.next(), c));
    const bool from_mate = of == at.host;  // who gives it to the host's others, too
    s.steps.push_back(move(c, {slot(from_mate ? c : at.prev(), c)},
                           from_mate ? std::move(to) : slots_to_mates(at, c, std::move(to))));
  }
}

void hierarchical_all_gather(Schedule& s) {
  const Rails at(s);
  s.chunks = s.ranks;
  for_passes(at, [&](int pass, int t) {
    const int of = around(at.host - t, at.hosts);
    pass_block(s, at, pass, t);
    for (int i = 1; i <= at.rails; ++i) {
      const int l = (at.local + i) % at.rails, number = pass * at.rails + l;
      if (l == at.local || number >= at.ranks_on(of)) continue;
      const int c = at.rank(of, number);
      if (c == s.rank) continue;
      s.steps.push_back(move(c, {slot(of == at.host ? c : at.mate(l), c)}, {out(c)}));
    }
  });
}

/// The own host's place in the chain from the root's host.
int place_of(const Schedule& s, const Rails& at) {
  return around(at.host - at.map.host_of(s.root), at.hosts);
}

void hierarchical_broadcast(Schedule& s) {
  const Rails at(s);
  const int place = place_of(s, at);
  s.chunks = at.rails;
  const auto pass_on = [&](Operand from) {
    std::vector<Operand> to{out(at.local)};
    if (place + 1 < at.hosts) to.push_back(slot(at.next(), at.local));
    s.steps.push_back(move(at.local, {from}, slots_to_mates(at, at.local, std::move(to), s.root)));
  };
  if (s.rank == s.root) {
    at.for_rail_mates([&](int l) {
      s.steps.push_back(move(l, {in(l)}, {out(l), slot(at.mate(l), l)}));
    });
    if (at.on_rail()) pass_on(in(at.local));
    return;
  }
  if (at.on_rail()) pass_on(slot(place == 0 ? s.root : at.prev(), at.local));
  at.for_rail_mates([&](int l) { s.steps.push_back(move(l, {slot(at.mate(l), l)}, {out(l)})); });
}

void hierarchical_reduce(Schedule& s) {
  const Rails at(s);
  const int place = place_of(s, at), c = at.local;
  s.chunks = at.rails;
  send_parts(s, at, 0);
  if (at.on_rail()) {
    std::vector<Operand> sources;
    if (place + 1 < at.hosts) sources.push_back(slot(at.next(), c));
    const Operand to = s.rank == s.root ? out(c) : slot(place == 0 ? s.root : at.prev(), c);
    s.steps.push_back(move(c, slots_from_host(s, at, c, std::move(sources)), {to}, place == 0));
  }
  if (s.rank != s.root) return;
  at.for_rail_mates([&](int l) { s.steps.push_back(move(l, {slot(at.mate(l), l)}, {out(l)})); });
}

/// One step of the exchange of blocks with other hosts: towards host `to`, from host `from`.
void exchange_step(Schedule& s, const Rails& at, int to, int from, int step) {
  const int n = at.ranks_here(), base = step / n * n, i = step % n;
  const auto chunk = [&](int sender, int receiver) { return sender * s.ranks + receiver; };
  const int mate = (at.local + i) % n;
  if (base + mate < at.ranks_on(to)) {
    const int receiver = at.rank(to, base + mate), c = chunk(s.rank, receiver);
    s.steps.push_back(move(c, {in(receiver)}, {slot(i == 0 ? receiver : at.mate(mate), c)}));
  }
  if (i > 0 && base + at.local < at.ranks_on(to)) {
    const int sender = at.mate(around(at.local - i, n)), receiver = at.rank(to, base + at.local);
    const int c = chunk(sender, receiver);
    s.steps.push_back(move(c, {slot(sender, c)}, {slot(receiver, c)}));
  }
  const int there = at.ranks_on(from), forwarder = at.local % there;
  if (step / there == at.local / there) {
    const int sender = at.rank(from, around(forwarder - step % there, there));
    const int c = chunk(sender, s.rank);
    s.steps.push_back(move(c, {slot(at.rank(from, forwarder), c)}, {out(sender)}));
  }
}

void hierarchical_all_to_all(Schedule& s) {
  const Rails at(s);
  const int n = at.ranks_here();
  s.chunks = s.ranks * s.ranks;
  s.steps.push_back(move(s.rank * s.ranks + s.rank, {in(s.rank)}, {out(s.rank)}));
  for (int i = 1; i < n; ++i) {
    const int to = at.mate((at.local + i) % n), from = at.mate(around(at.local - i, n));
    s.steps.push_back(move(s.rank * s.ranks + to, {in(to)}, {slot(to, s.rank * s.ranks + to)}));
    s.steps.push_back(
        move(from * s.ranks + s.rank, {slot(from, from * s.ranks + s.rank)}, {out(from)}));
  }
  const auto whole = [](int a, int b) { return (a + b - 1) / b * b; };
  for (int k = 1; k < at.hosts; ++k) {
    const int to = (at.host + k) % at.hosts, from = around(at.host - k, at.hosts);
    const int steps = std::max(whole(at.ranks_on(to), n), whole(n, at.ranks_on(from)));
    for (int step = 0; step < steps; ++step) exchange_step(s, at, to, from, step);
  }
}

// ---- Formulas: exact for hosts of one size; else for the largest host, whose ranks are the busiest.

/// An all_reduce's: H(R-1) parts and 2(H-1) sums sent, H * n parts and sums to and from the host.
Terms hierarchical_all_reduce_terms(const Load& l) {
  const double h = l.on.hosts, r = l.on.least, n = l.on.most, chunk = l.n / (h * r);
  return {.hops = 2 * (h - 1) + (n > 1 ? 2 : 0),
          .peers = 2 * h * std::max(0.0, n - 2),
          .slot_bytes = 2 * (h * (r - 1) + h * (n - 1) + 2 * (h - 1)) * chunk,
          .memory_bytes = 2 * l.n,
          .reduced_bytes = (h * n - 1) * chunk};
}

WireTerms hierarchical_all_reduce_wire(const Load& l) {
  const double h = l.on.hosts;
  return {.hops = 2 * (h - 1),
          .messages = 2 * (h - 1) * l.messages(l.n / (h * l.on.least)),
          .bytes = 2 * (h - 1) / h * l.n,
          .both_bytes = 4 * (h - 1) / h * l.n,
          .text = "2(H-1)/H * S"};
}

/// How often blocks pass along the rails.
double passes(const Load& l) {
  return static_cast<double>(static_cast<int>((l.on.most - 1) / l.on.least) + 1);
}

/// Of reduce_scatter, or all_gather. A rail has `blocks` blocks.
Terms hierarchical_half_terms(const Load& l, bool reduces) {
  const double h = l.on.hosts, n = l.on.most, blocks = l.p / l.on.least;
  return {.hops = (h - 1) * passes(l) + (n > 1 ? 1 : 0),
          .peers = blocks * std::max(0.0, n - 2),
          .slot_bytes = (l.p - 1 + blocks * n - 1) * l.n,
          .memory_bytes = l.all() + l.n,
          .reduced_bytes = reduces ? (blocks * n - 1) * l.n : 0};
}

WireTerms hierarchical_half_wire(const Load& l) {
  const double blocks = l.p / l.on.least;
  return {.hops = (l.on.hosts - 1) * passes(l),
          .messages = (blocks - 1) * l.messages(l.n),
          .bytes = l.on.outside * l.n,
          .both_bytes = l.on.outside_two * l.n,
          .text = l.on.least == l.on.most ? "(H-1)/H * S" : "(N-n)/N * S, n the smallest host's"};
}

/// Of broadcast, or reduce: a chain of hosts for each rail.
Terms hierarchical_chain_terms(const Load& l, bool reduces) {
  const double h = l.on.hosts, r = l.on.least, n = l.on.most, passes = (r + n) / r;
  Terms terms = pipelined(l, h - 1 + (n > 1 ? 2 : 0), passes, 0);
  if (reduces) terms.reduced_bytes = n / r * l.n;
  return terms;
}

WireTerms hierarchical_chain_wire(const Load& l) {
  const double h = l.on.hosts, chunk = l.n / l.on.least;
  return {.hops = h - 1,
          .messages = l.messages(chunk),
          .bytes = l.n,
          .both_bytes = h > 2 ? 2 * l.n : l.n,
          .fill_bytes = (h - 2) * std::min(l.n, l.on.least * l.slot),
          .text = "S"};
}

Terms hierarchical_all_to_all_terms(const Load& l) {
  const double h = l.on.hosts, n = l.on.most;
  return {.hops = (h - 1) * n + (n > 1 ? 1 : 0),
          .peers = std::max(0.0, n - 2),
          .slot_bytes = 2 * (2 * l.p - h - n) * l.n,
          .memory_bytes = 2 * l.p * l.n};
}

/// A rank goes on when it has received what belongs to its step.
WireTerms hierarchical_all_to_all_wire(const Load& l) {
  return {.hops = (l.on.hosts - 1) * l.on.most,
          .messages = l.on.outside * l.messages(l.n),
          .bytes = l.on.pairs * l.n,
          .both_bytes = 2 * l.on.pairs * l.n};
}

/// A rank's place, for volumes.
struct HostPosition {
  const base::HostMap& map;
  int host, local, n, hosts, rails, place, root_local;
  explicit HostPosition(const Position& at)
      : map(*at.hosts),
        host(map.host_of(at.rank)),
        local(map.local_rank(at.rank)),
        n(static_cast<int>(map.ranks_on(host).size())),
        hosts(map.hosts()),
        rails(rails_of(map)),
        place(around(host - map.host_of(at.root), hosts)),
        root_local(map.local_rank(at.root)) {}

  bool on_rail() const { return local < rails; }
  bool equal_hosts() const { return hosts * rails == map.ranks(); }
  /// How many of the ranks of host `h` have the own number modulo `modulus`.
  int alike(int h, int modulus) const {
    const int there = static_cast<int>(map.ranks_on(h % hosts).size()), l = local % modulus;
    return there > l ? (there - 1 - l) / modulus + 1 : 0;
  }
  int alike_elsewhere(int modulus) const {
    int all = 0;
    for (int h = 0; h < hosts; ++h) all += h == host ? 0 : alike(h, modulus);
    return all;
  }
};

Amount amount(int units, std::string_view text, int parts = 0) {
  return {static_cast<uint64_t>(units), text, static_cast<uint64_t>(parts)};
}

Volume all_reduce_volume(const Position& position) {
  const HostPosition at(position);
  if (at.equal_hosts()) return {.sent = position.there_and_back()};
  if (!at.on_rail()) return {.sent = position.everything()};
  const int h = at.hosts, r = at.rails;
  return {.sent = amount(h * (r - 1) + 2 * (h - 1) + h * (at.n - 1),
                         "(H(R-1) + 2(H-1) + H(n-1))/HR * S", h * r)};
}

Volume reduce_scatter_volume(const Position& position) {
  return {.sent =
              HostPosition(position).on_rail() ? position.others_blocks() : position.everything()};
}

Volume all_gather_volume(const Position& position) {
  const HostPosition at(position);
  if (at.equal_hosts()) return {.sent = position.others_blocks()};
  if (!at.on_rail()) return {.sent = amount(at.n - 1, "(n-1)/N * S")};
  const int others = at.alike_elsewhere(at.rails);
  const int to_next = others + at.alike(at.host, at.rails) - at.alike(at.host + 1, at.rails);
  return {.sent = amount(to_next + (others + 1) * (at.n - 1), "S/N for next and others")};
}

Volume broadcast_volume(const Position& position) {
  const HostPosition at(position);
  const int r = at.rails, next = at.place + 1 < at.hosts ? 1 : 0;
  if (position.rank == position.root) {
    return {.sent = at.on_rail() ? amount(r - 1 + next + at.n - 1, "(R+n-1)/R * S", r)
                                 : position.everything()};
  }
  if (!at.on_rail()) return {};
  return {.sent = amount(next + at.n - (at.place == 0 ? 2 : 1), "S/R for next and others", r)};
}

Volume reduce_volume(const Position& position) {
  const HostPosition at(position);
  const bool keeps = position.rank == position.root && at.on_rail();
  return {.sent = keeps ? amount(at.rails - 1, "(R-1)/R * S", at.rails) : position.everything()};
}

Volume all_to_all_volume(const Position& position) {
  const HostPosition at(position);
  const int others = at.map.ranks() - 1, forwarded = (at.n - 1) * at.alike_elsewhere(at.n);
  return {.sent = amount(others + forwarded, "(2N-H-R)/N * S")};
}

constexpr CollectiveTraits kHierarchicalCollectives[] = {
    {.collective = Collective::kAllReduce,
     .build = hierarchical_all_reduce,
     .terms = hierarchical_all_reduce_terms,
     .volume = all_reduce_volume,
     .wire = hierarchical_all_reduce_wire,
     .least_depth = 2},
    {.collective = Collective::kReduceScatter,
     .build = hierarchical_reduce_scatter,
     .terms = [](const Load& l) { return hierarchical_half_terms(l, true); },
     .volume = reduce_scatter_volume,
     .wire = hierarchical_half_wire,
     .least_depth = 2},
    {.collective = Collective::kAllGather,
     .build = hierarchical_all_gather,
     .terms = [](const Load& l) { return hierarchical_half_terms(l, false); },
     .volume = all_gather_volume,
     .wire = hierarchical_half_wire,
     .least_depth = 2},
    {.collective = Collective::kBroadcast,
     .build = hierarchical_broadcast,
     .terms = [](const Load& l) { return hierarchical_chain_terms(l, false); },
     .volume = broadcast_volume,
     .wire = hierarchical_chain_wire},
    {.collective = Collective::kReduce,
     .build = hierarchical_reduce,
     .terms = [](const Load& l) { return hierarchical_chain_terms(l, true); },
     .volume = reduce_volume,
     .wire = hierarchical_chain_wire},
    {.collective = Collective::kAllToAll,
     .build = hierarchical_all_to_all,
     .terms = hierarchical_all_to_all_terms,
     .volume = all_to_all_volume,
     .wire = hierarchical_all_to_all_wire,
     .in_place = false,
     .has_v_form = false},
};

}  // namespace

extern constinit const AlgorithmTraits kHierarchical{.algorithm = Algorithm::kHierarchical,
                                                     .needs = {.hosts = true},
                                                     .folds_in_rank_order = false,
                                                     .collectives = kHierarchicalCollectives};

}  // namespace rondo::algorithms
