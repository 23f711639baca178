// The parts of rondo.h's functions: handles, error codes with a text per thread, structs that grow,
// and the forwarding of a collective's call. Knows no particular collective.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <initializer_list>
#include <list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "comm/base/refuse.hpp"
#include "rondo/rondo.h"
#include "rondo/rondo.hpp"

struct rondo_communicator {
  rondo::Communicator communicator;
  /// Of the recvs of a group, which its end writes.
  struct Promised {
    rondo::Envelope envelope;
    rondo_envelope* into;
    size_t size;
  };
  std::list<Promised> promised{};
  int groups = 0;  // begun and not ended
};

struct rondo_pending {
  std::future<rondo::Result<rondo::Communicator>> future;
};

struct rondo_work {
  rondo::Work work;
};

namespace rondo::c_api {

// ---- failures

/// Remembers this thread's last error, and returns its code.
rondo_code report(const Status& status);
/// The same without allocating; `text` is a literal.
rondo_code report(rondo_code code, const char* text);

/// Runs `body` and returns its code, whatever it throws.
template <class Body>
rondo_code guarded(const Body& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(RONDO_RESOURCE_EXHAUSTED, "memory is exhausted");
  } catch (...) {
    return report(RONDO_SYSTEM, "something inside rondo threw an exception");
  }
}

using comm::refuse;

inline Status check_pointer(const void* pointer, const char* what) {
  return pointer != nullptr ? Status() : refuse(fmt::format("{} is null", what));
}

/// Pointers that must not be null, with their names.
using Required = std::initializer_list<std::pair<const void*, const char*>>;

/// The same, refusing null pointers first.
template <class Body>
rondo_code guarded(Required pointers, const Body& body) noexcept {
  return guarded([&]() -> Status {
    for (const auto& [pointer, what] : pointers) RONDO_TRY(check_pointer(pointer, what));
    return body();
  });
}

/// Writes the value with that number to `into`.
template <class Enum>
Status read_value(int32_t number, int count, const char* what, Enum& into) {
  if (number < 0 || number >= count) {
    return refuse(fmt::format("unknown {} {}: 0 to {} exist", what, number, count - 1));
  }
  into = static_cast<Enum>(number);
  return {};
}

// ---- structs that grow

/// Converts the caller's struct, of any version, to this library's: fields that an older one lacks
/// get their defaults; fields that only a newer one has must be zero.
template <class Struct>
Status read_struct(const Struct* given, const char* what, Struct& known) {
  if (given == nullptr) return {};
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  constexpr size_t kMost = 4096;
  if (size < sizeof size || size > kMost) {
    return refuse(
        fmt::format("{}.size is {}: initialise the struct with {}_init", what, size, what));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (std::any_of(bytes + std::min(size, sizeof known), bytes + size,
                  [](unsigned char byte) { return byte != 0; })) {
    return refuse(fmt::format(
        "{}.size is {}, in this library {}, and a field beyond that is set: the library is older "
        "than the program's header and does not know the field",
        what, size, sizeof known));
  }
  std::memcpy(&known, given, std::min(size, sizeof known));
  if constexpr (requires { known.reserved; }) {
    if (known.reserved != 0)
      return refuse(fmt::format("{}.reserved is {}, not 0", what, known.reserved));
  }
  return {};
}

/// Fills the first `size` bytes of the caller's struct; fields unknown to this library become 0.
template <class Struct>
void write_struct(const Struct& known, void* into, size_t size) {
  std::memset(into, 0, size);
  std::memcpy(into, &known, std::min(size, sizeof known));
}

template <class Struct>
void write_sized_struct(Struct known, Struct* into, size_t size) {
  if (into == nullptr || size < sizeof size) return;
  known.size = size;
  write_struct(known, into, size);
}

// ---- operations

/// A count, or an offset, for each rank; null: absent.
inline std::span<const size_t> for_each_rank(const size_t* numbers, const Communicator& c) {
  return numbers == nullptr ? std::span<const size_t>()
                            : std::span<const size_t>(numbers, static_cast<size_t>(c.size()));
}

/// The arguments of every call, as passed from C; calls without a type or operator leave it out.
struct Given {
  rondo_communicator* communicator;
  const rondo_call_options* options;
  rondo_data_type type = RONDO_UINT8;
  rondo_reduce_op op = RONDO_SUM;
};

/// The same, checked.
struct Arguments {
  DataType type;
  ReduceOp op;
  CallOptions options;
};

Status read_arguments(const Given& given, Arguments& into);

/// A call that this layer refuses must spoil its group, as C++'s own refusals do: so it is
/// forwarded with arguments that C++ always refuses.
template <class Body>
void spoil(const Given& given, Arguments arguments, const Body& body) {
  if (given.communicator == nullptr) return;
  arguments.type = static_cast<DataType>(0xff);
  arguments.options.stall_timeout = std::chrono::milliseconds(-1);
  (void)body(given.communicator->communicator, arguments);
}

/// body: (Communicator&, const Arguments&) -> Status
template <class Body>
rondo_code run(const Given& given, const Body& body) {
  return guarded([&]() -> Status {
    Arguments arguments{};
    if (Status status = read_arguments(given, arguments); !status.ok()) {
      spoil(given, arguments, body);
      return status;
    }
    return body(given.communicator->communicator, arguments);
  });
}

/// body: (Communicator&, const Arguments&) -> Work
template <class Body>
rondo_code start(const Given& given, rondo_work** work, const Body& body) {
  if (work != nullptr) *work = nullptr;
  return guarded([&]() -> Status {
    Arguments arguments{};
    if (Status status = read_arguments(given, arguments); !status.ok()) {
      spoil(given, arguments, body);
      return status;
    }
    // Allocated first, so that no operation is pending if there is no memory for its handle.
    auto handle = std::make_unique<rondo_work>(rondo_work{Work(nullptr)});
    handle->work = body(given.communicator->communicator, arguments);
    RONDO_TRY(handle->work.status());
    if (work != nullptr) *work = handle.release();
    return {};
  });
}

/// Pointers to a number for each rank, as passed from C; null: absent.
struct BlockPointers {
  const size_t *in_counts = nullptr, *in_offsets = nullptr;
  const size_t *out_counts = nullptr, *out_offsets = nullptr;

  Blocks of(const Communicator& c) const {
    return {for_each_rank(in_counts, c), for_each_rank(in_offsets, c), for_each_rank(out_counts, c),
            for_each_rank(out_offsets, c)};
  }
};

/// A collective: `call` without its type, its operator and its blocks.
inline rondo_code run(const Given& given, Call call, const BlockPointers& pointers = {}) {
  return run(given, [&](Communicator& c, const Arguments& a) {
    const Blocks blocks = pointers.of(c);
    call.type = a.type;
    call.op = a.op;
    call.blocks = &blocks;
    return c.run(call, a.options);
  });
}
inline rondo_code start(const Given& given, rondo_work** work, Call call,
                        const BlockPointers& pointers = {}) {
  return start(given, work, [&](Communicator& c, const Arguments& a) {
    const Blocks blocks = pointers.of(c);
    call.type = a.type;
    call.op = a.op;
    call.blocks = &blocks;
    return c.start(call, a.options);
  });
}

}  // namespace rondo::c_api
