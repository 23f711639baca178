// The board: posts are read whole or not at all, the first error wins and is whole, a call's text
// and hash tell calls apart.
#include "comm/board/board.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/printable.hpp"
#include "tests/comm/engine/board_memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/transport/child.hpp"

namespace rondo::board {

using testing::contains;
using transport::test::Child;
using transport::test::in_child;

TEST_CASE("a reader sees a post whole or not at all while the owner laps it") {
  const BoardMemory memory(2);
  Board writer(memory.base(), 2, 0), reader(memory.base(), 2, 1);
  constexpr uint64_t kLast = 200000;
  std::atomic<bool> torn{false};
  std::thread thread([&] {
    uint64_t seen = 0;
    while (seen < kLast) {
      const uint64_t posted = reader.state(0).posted.load(std::memory_order_acquire);
      for (uint64_t sequence = posted > 3 ? posted - 3 : 1; sequence <= posted; ++sequence) {
        const auto p = reader.read(0, sequence);
        if (p && (p->call.count != sequence * 3 || p->in.offset != sequence * 5 ||
                  p->out.offset != sequence * 7))
          torn = true;
      }
      seen = posted;
    }
  });
  for (uint64_t sequence = 1; sequence <= kLast; ++sequence) {
    writer.post(sequence, all_reduce_call(sequence * 3),
                {.kind = 1, .arena = 9, .offset = sequence * 5},
                {.kind = 2, .arena = 8, .offset = sequence * 7});
  }
  thread.join();
  CHECK_FALSE(torn);
  CHECK(reader.has_posted(0, kLast));
  CHECK_FALSE(reader.has_posted(0, kLast + 1));
  CHECK_FALSE(reader.read(0, kLast - kHistory).has_value());
  const auto last = reader.read(0, kLast);
  REQUIRE(last.has_value());
  CHECK(last->in.kind == 1);
  CHECK(last->out.kind == 2);
  CHECK(last->in.arena == 9);
  CHECK(last->out.arena == 8);
}

TEST_CASE("who asks before it posts overwrites nothing that a rank still needs") {
  for (const int ranks : {2, 24, 200}) {
    const BoardMemory memory(ranks);
    const Board board(memory.base(), ranks, 0);
    std::vector<uint64_t> counts(static_cast<size_t>(ranks), 1);
    for (const bool exchanges : {false, true}) {
      uint64_t begun = 0;  // what the slowest rank is known to have begun
      for (uint64_t sequence = 1; sequence < 1000; ++sequence) {
        begun = std::max(begun, board.needed_before_post(sequence, exchanges));
        REQUIRE(begun < sequence);  // else it would wait for what it keeps back itself
        // Who is in operation `begun`, or about to begin the first, needs that and later ones.
        const uint64_t oldest = std::max<uint64_t>(begun, 1);
        REQUIRE((sequence <= kHistory || sequence - kHistory < oldest));
        if (!exchanges) continue;
        board.post_counts(sequence, counts, counts);
        REQUIRE(board.exchange(0, 0, sequence).has_value());
        REQUIRE(board.exchange(0, 0, oldest).has_value());
      }
    }
  }
}

TEST_CASE("the first error wins, and everybody reads it") {
  const BoardMemory memory(3);
  Board a(memory.base(), 3, 0), b(memory.base(), 3, 1), c(memory.base(), 3, 2);
  CHECK(c.error().ok());
  CHECK(a.raise({Code::kMismatch, "first"}).message() == "first");
  const Status second = b.raise({Code::kTimeout, std::string(5000, 'x')});
  CHECK(second.message() == "first");
  CHECK(second.code() == Code::kMismatch);
  CHECK(c.error().message() == "first");
}

TEST_CASE("an error has no control characters, and is cut between characters") {
  for (const size_t before : {0, 1}) {
    const BoardMemory memory(2);
    const Board a(memory.base(), 2, 0), b(memory.base(), 2, 1);
    std::string text = "a\n\x1b[31m\x7f" + std::string(before, 'x');
    const std::string shown = "a??[31m?" + std::string(before, 'x');
    for (int i = 0; i < 1000; ++i) text += "\u00e4";
    (void)a.raise({Code::kMismatch, text});
    const std::string read = b.error().message();
    CHECK(read.starts_with(shown + "\u00e4"));
    CHECK(read.ends_with("\u00e4"));
    CHECK((read.size() - shown.size()) % 2 == 0);
    CHECK(read.size() > 1000);
    CHECK(a.error().message() == read);
  }
}

TEST_CASE("a text is cut between its characters, and bytes that are none anywhere") {
  using base::whole_characters;
  CHECK(whole_characters("abc", 3) == "abc");
  CHECK(whole_characters("abc", 2) == "ab");
  CHECK(whole_characters("\u00e4", 0).empty());
  CHECK(whole_characters("\u00e4", 1).empty());
  CHECK(whole_characters("a\u20acb", 3) == "a");
  CHECK(whole_characters("a\u20acb", 4) == "a\u20ac");
  CHECK(whole_characters("a\U0001f600b", 4) == "a");
  CHECK(whole_characters(std::string(9, '\x80'), 6).size() == 6);
}

TEST_CASE("a finder that dies while it writes its error hides none and delays nobody") {
  // Writing goes as far as the first page, which holds what finders compete for, but not the texts.
  constexpr size_t kPage = 4096, kPages = 16;
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  std::byte* const base = pages + kPage - sizeof(BoardHeader) - sizeof(FirstError);
  REQUIRE(sizeof(BoardHeader) + sizeof(FirstError) + Board::bytes_needed(2) < kPages * kPage);
  Board finder(base, 2, 0), other(base, 2, 1);
  // In the middle of it.
  CHECK(in_child([&]() -> std::string {
          signal(SIGSEGV, SIG_DFL);
          mprotect(pages + kPage, (kPages - 1) * kPage, PROT_READ);
          (void)finder.raise({Code::kMismatch, std::string(500, 'x')});
          return "whole";
        }) == "ended by signal " + std::to_string(SIGSEGV));
  CHECK_FALSE(other.has_error());
  CHECK(other.error().ok());
  CHECK(other.raise({Code::kPeerDied, "rank 0 ended"}).message() == "rank 0 ended");
  CHECK(finder.raise({Code::kMismatch, "too late"}).message() == "rank 0 ended");
  munmap(pages, kPages * kPage);
}

TEST_CASE("another process's verdict for this rank's own error orders that error's text") {
  // For ThreadSanitizer, which does not see what the other process pairs.
  const size_t bytes = Board::bytes_needed(2);
  auto* const base = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(base != MAP_FAILED);
  auto& first = *reinterpret_cast<FirstError*>(base + sizeof(BoardHeader));
  Child other([&]() -> std::string {
    while (first.finder.load(std::memory_order_acquire) == 0) usleep(100);
    first.verdict.store(1, std::memory_order_release);
    return "";
  });
  Board own(base, 2, 0);
  std::thread finder([&] { (void)own.raise({Code::kPeerDied, "rank 1 ended"}); });
  while (first.verdict.load(std::memory_order_relaxed) == 0) usleep(100);
  const Status error = own.error();
  finder.join();
  CHECK(error.message() == "rank 1 ended");
  CHECK(other.text() == "");
  munmap(base, bytes);
}

TEST_CASE("of errors that several threads of several ranks raise at once one holds, and whole") {
  for (int turn = 0; turn < 200; ++turn) {
    const BoardMemory memory(2);
    Board boards[] = {{memory.base(), 2, 0}, {memory.base(), 2, 1}};
    std::string said[4];
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const std::string own(200 + t, static_cast<char>('a' + t));
        said[t] = boards[t % 2].raise({Code::kAborted, own}).message();
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(said[0].size() >= 200);
    CHECK(said[0] == std::string(said[0].size(), static_cast<char>('a' + said[0].size() - 200)));
    for (const std::string& text : said) CHECK(text == said[0]);
  }
}

TEST_CASE("the messages with which a rank waits are shown to all, as far as they make sense") {
  const BoardMemory memory(3);
  const Board a(memory.base(), 3, 0), b(memory.base(), 3, 1);
  CHECK(b.messages(0).empty());
  constexpr uint64_t kMost = (uint64_t{1} << 43) - 1;
  a.show_message(0, {.sends = true,
                     .peer = 2,
                     .type = DataType::kFloat8E5M2,
                     .count = kMost,
                     .moved_bytes = 7,
                     .since_ns = 1,
                     .behind = 4});
  a.show_message(1, {.sends = false, .peer = 1, .type = DataType::kFloat64, .count = 3});
  a.show_messages(2);
  const std::vector<Message> shown = b.messages(0);
  REQUIRE(shown.size() == 2);
  CHECK(shown[0].to_string() == "send(f8e5m2, count 8796093022207) to rank 2");
  CHECK(shown[0].moved_bytes == 7);
  CHECK(shown[0].since_ns == 1);
  CHECK(shown[0].behind == 4);
  CHECK_THAT(shown[1].describe(),
             contains("recv(double, count 3) from rank 1: 0 of 24 bytes, for "));
  CHECK(b.messages(1).empty());
  CHECK_THAT(b.to_string(), contains(": 7 of 8796093022207 bytes, for ") &&
                                contains("; 4 more queued after it  <- pending"));

  // More than there is room for are counted; what a stranger's board says is not believed.
  for (uint32_t i = 0; i < kMessages + 5; ++i) {
    a.show_message(i, {.sends = false, .peer = 1, .type = DataType::kInt8, .count = i});
  }
  a.show_messages(kMessages + 5);
  CHECK(b.messages(0).size() == kMessages);
  CHECK_THAT(b.to_string(), contains("and those of 5 more lanes"));
  a.show_message(0, {.sends = false, .peer = 77, .type = DataType::kInt8, .count = 1});
  a.show_message(1, {.sends = false, .peer = 1, .type = static_cast<DataType>(31), .count = 1});
  CHECK(b.messages(0).size() == kMessages - 2);
  a.show_messages(0);
  CHECK(b.messages(0).empty());
}

TEST_CASE("stronger evidence of a rank's end replaces weaker, and what one rank finds all know") {
  const BoardMemory memory(3);
  const Board finder(memory.base(), 3, 0), other(memory.base(), 3, 1);
  const Life steps[] = {Life::kAbsent, Life::kAlive, Life::kLost, Life::kDead, Life::kGone};
  for (const Life later : steps) {
    finder.learn(2, later);
    for (const Life earlier : steps) {
      if (earlier < later) finder.learn(2, earlier);
    }
    CHECK(other.life(2) == later);
    CHECK(other.is_dead_or_lost(2) == (later == Life::kLost || later == Life::kDead));
  }
  finder.learn_deaths([](int first) { return first <= 1 ? 1 : -1; });
  CHECK(other.life(1) == Life::kDead);
  CHECK(finder.life(0) == Life::kAlive);
  CHECK_THAT(other.to_string(), testing::contains("dead): 0 begun"));
}

TEST_CASE("calls that differ in anything differ in hash and text") {
  const Fingerprint base = all_reduce_call(100);
  std::vector<Fingerprint> calls(8, base);
  calls[0].collective = Collective::kReduceScatter;
  calls[1].type = DataType::kInt32;
  calls[2].op = ReduceOp::kMax;
  calls[3].algorithm = Algorithm::kRing;
  calls[4].count = 101;
  calls[5].collective = calls[6].collective = Collective::kBroadcast;
  calls[6].root = 1;
  calls[7].kind = FingerprintKind::kSplit;
  calls.push_back(base);
  std::set<uint64_t> hashes;
  std::set<std::string> texts;
  for (const Fingerprint& call : calls) {
    CHECK(hashes.insert(call.hash()).second);
    CHECK(texts.insert(call.to_string()).second);
    CHECK((call == base) == (&call == &calls.back()));
  }
  CHECK(calls[7].to_string() == "split");
  const BoardMemory memory(1);
  Board board(memory.base(), 1, 0);
  board.post(1, calls[7], {}, {});
  REQUIRE(board.read(0, 1).has_value());
  CHECK(board.read(0, 1)->call == calls[7]);
}

}  // namespace rondo::board
