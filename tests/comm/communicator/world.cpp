// The data of world.hpp. Apart from the tests, which are made to compile quickly and not to run
// fast: under sanitizers most of their time would go into this.
#include "tests/comm/communicator/world.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string_view>

#include "comm/bootstrap/identity/host.hpp"
#include "comm/setup/transport_decorator.hpp"
#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "tests/transport/lazy.hpp"

namespace rondo::testing {

namespace {

// RONDO_TEST_TRANSPORT: what the communicators of this program are made with (CMakeLists.txt).
const std::string_view kTransport = [] {
  const char* const name = std::getenv("RONDO_TEST_TRANSPORT");
  return std::string_view(name == nullptr ? "" : name);
}();

// hosts: even ranks on one host, odd ones on another, and UCX's tcp over loopback between them.
const bool kSeveralHosts = [] {
  if (kTransport != "hosts") return false;
  comm::pretend_host = [](int rank, comm::RankHost& here) {
    here.name = rank % 2 == 0 ? "even" : "odd";
    here.boot_id = here.name;
  };
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  return true;
}();

const bool kDecorated = [] {
  if (kTransport.empty() || kSeveralHosts) return kSeveralHosts;
  comm::transport_decorator =
      kTransport == "mixed" ? transport::test::lazy_between : transport::test::lazy;
  return true;
}();

/// Repeats the first `period` of `bytes` bytes to their end.
void repeat(unsigned char* at, size_t period, size_t bytes) {
  for (size_t done = period; done < bytes; done *= 2)
    std::memcpy(at + done, at, std::min(done, bytes - done));
}

}  // namespace

std::string meeting_place(const std::string& directory) {
  return kSeveralHosts ? loopback_place(directory) : directory;
}

std::string loopback_place(const std::string& directory) {
  const size_t port = 20000 + std::hash<std::string>{}(directory) % 12000;
  return "tcp://127.0.0.1:" + std::to_string(port);
}

void need_memory(size_t bytes) {
  const auto free_bytes =
      static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (free_bytes >= bytes) return;
  std::cout << "skipped: " << bytes << " bytes are needed, " << free_bytes << " are free\n";
  std::exit(kSkipped);
}

std::vector<How> exhaustive_hows() {
  return kDecorated && !kSeveralHosts ? std::vector<How>{kHows.back()} : kHows;
}

std::vector<bool> plain_and_library() {
  return kDecorated ? std::vector<bool>{false} : std::vector<bool>{false, true};
}

int contribution(int rank, size_t i, ReduceOp op) {
  if (op == ReduceOp::kProd) return (i + static_cast<size_t>(rank)) % 3 == 0 ? 2 : 1;
  return static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3 + i / 13) % 11) + rank % 3;
}

double expected(int size, size_t i, ReduceOp op, DataType type) {
  const auto with_next = [op](double value, double next) -> double {
    const int bits = static_cast<int>(value), next_bits = static_cast<int>(next);
    switch (op) {
      case ReduceOp::kProd:
        return value * next;
      case ReduceOp::kMin:
        return std::min(value, next);
      case ReduceOp::kMax:
        return std::max(value, next);
      case ReduceOp::kBand:
        return bits & next_bits;
      case ReduceOp::kBor:
        return bits | next_bits;
      case ReduceOp::kBxor:
        return bits ^ next_bits;
      default:  // sums, scaled ones with a factor of 1, and averages
        return value + next;
    }
  };
  double value = contribution(0, i, op);
  for (int rank = 1; rank < size; ++rank) value = with_next(value, contribution(rank, i, op));
  if (op != ReduceOp::kAvg) return value;
  value /= size;
  return is_floating(type) ? value : std::trunc(value);
}

void store(unsigned char* at, DataType type, double value) {
  const auto put = [&](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (type) {
    case DataType::kFloat32:
      return put(static_cast<float>(value));
    case DataType::kFloat64:
      return put(value);
    case DataType::kFloat16:
      return put(kernels::half_from_float(static_cast<float>(value)));
    case DataType::kBFloat16:
      return put(kernels::bfloat16_from_float(static_cast<float>(value)));
    case DataType::kUint64:
      return put(static_cast<uint64_t>(value));
    case DataType::kBool:
      return put(static_cast<uint8_t>(value != 0));
    case DataType::kFloat8E4M3:
      return put(kernels::e4m3_from_float(static_cast<float>(value)));
    case DataType::kFloat8E5M2:
      return put(kernels::e5m2_from_float(static_cast<float>(value)));
    default: {  // the low bytes of an integer
      const auto whole = static_cast<int64_t>(value);
      std::memcpy(at, &whole, size_of(type));
    }
  }
}

void fill(Buffer& buffer, size_t from, size_t count, DataType type, ReduceOp op, int rank,
          size_t first) {
  const size_t size = size_of(type);
  unsigned char* const at = buffer.data() + from * size;
  for (size_t i = 0; i < std::min(count, kRepeatsAfter); ++i)
    store(at + i * size, type, contribution(rank, first + i, op));
  repeat(at, kRepeatsAfter * size, count * size);
}

void check(Buffer& buffer, size_t from, size_t count, DataType type,
           const std::function<double(size_t)>& value, const std::string& what) {
  const size_t size = size_of(type);
  // As a whole: under sanitizers a comparison costs more than what it compares.
  std::vector<unsigned char> wanted(count * size);
  for (size_t i = 0; i < std::min(count, kRepeatsAfter); ++i)
    store(wanted.data() + i * size, type, value(i));
  repeat(wanted.data(), kRepeatsAfter * size, wanted.size());
  if (count > kRepeatsAfter) {
    unsigned char last[sizeof(double)];
    store(last, type, value(count - 1));
    expect(std::memcmp(last, &wanted[wanted.size() - size], size) == 0,
           what + ": what is wanted does not repeat after kRepeatsAfter elements");
  }
  const unsigned char* got = buffer.data() + from * size;
  if (count > 0 && std::memcmp(wanted.data(), got, wanted.size()) != 0) {
    const auto wrong = std::mismatch(wanted.begin(), wanted.end(), got).first - wanted.begin();
    expect(false, what + ": element " + std::to_string(from + static_cast<size_t>(wrong) / size) +
                      " is wrong");
  }
  buffer.check_guards(what);
}

}  // namespace rondo::testing
