// As huge_test, through slots, and with little memory: buffers past 4 GiB whose pages are the same
// few over and over. The period does not divide 2^31 or 2^32, so that an offset cut to 32 bits
// finds, or leaves, other bytes.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

constexpr size_t kPeriod = size_t{1023} * 4096;
constexpr size_t kPeriods = 1025;
constexpr size_t kTail = 8193;  // bytes that are there once
constexpr size_t kBytes = kPeriods * kPeriod + kTail;
static_assert(kPeriods * kPeriod < size_t{1} << 32 && kBytes > (size_t{1} << 32) + 4096);

/// Never 0, which is what nobody has written.
int value(size_t i, int rank) {
  const size_t place = i < kPeriods * kPeriod ? i % kPeriod : i - kPeriods * kPeriod + 50;
  return static_cast<int>(place % 101) + 1 + rank;
}

/// kBytes of address space. Plain memory, so that ranks stage it.
class Periodic {
 public:
  Periodic() {
    const int fd = memfd_create("period", MFD_CLOEXEC);
    expect(fd >= 0 && ftruncate(fd, kPeriod) == 0, "memfd");
    constexpr int kAccess = PROT_READ | PROT_WRITE;
    void* const all =
        mmap(nullptr, kBytes, kAccess, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect(all != MAP_FAILED, "no address space");
    data_ = static_cast<unsigned char*>(all);
    for (size_t p = 0; p < kPeriods; ++p) {
      expect(
          mmap(data_ + p * kPeriod, kPeriod, kAccess, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED,
          "mapping period " + std::to_string(p));
    }
    close(fd);
  }
  ~Periodic() { munmap(data_, kBytes); }
  Periodic(const Periodic&) = delete;
  Periodic& operator=(const Periodic&) = delete;

  unsigned char* data() { return data_; }
  /// The first period stands for all.
  void fill(const std::function<int(size_t)>& of) {
    for (size_t i = 0; i < kPeriod; ++i) data_[i] = static_cast<unsigned char>(of(i));
    for (size_t i = kBytes - kTail; i < kBytes; ++i) data_[i] = static_cast<unsigned char>(of(i));
  }
  void check(const std::string& what, const std::function<int(size_t)>& of) const {
    const auto check_one = [&](size_t i) {
      if (data_[i] != of(i)) {
        expect_eq(static_cast<int>(data_[i]), of(i), what + ", element " + std::to_string(i));
      }
    };
    for (size_t i = 0; i < kPeriod; ++i) check_one(i);
    for (size_t i = kBytes - kTail; i < kBytes; ++i) check_one(i);
  }

 private:
  unsigned char* data_ = nullptr;
};

}  // namespace

TEST_CASE("an all_reduce and a message past 4 GiB go through slots") {
  need_memory(size_t{256} << 20);  // mostly for page tables
  run_ok(How::kForks, 2, [](Communicator& comm) {
    Periodic in, out;
    in.fill([&](size_t i) { return value(i, comm.rank()); });
    expect_ok(comm.all_reduce(in.data(), out.data(), kBytes, DataType::kUint8, ReduceOp::kSum,
                              {.algorithm = Algorithm::kRing}),
              "all_reduce");
    out.check("all_reduce", [](size_t i) { return value(i, 0) + value(i, 1); });
    if (comm.rank() == 0) {
      expect_ok(comm.send(in.data(), kBytes, DataType::kUint8, 1), "send");
    } else {
      out.fill([](size_t) { return 0; });
      expect_ok(comm.recv(out.data(), kBytes, DataType::kUint8, 0), "recv");
      out.check("recv", [](size_t i) { return value(i, 0); });
    }
  });
}

}  // namespace rondo::testing
