// What the functions of rondo.h are made of: handles, failures as codes with a text per thread,
// structs that grow, and how a call of a collective is handed on. No collective is known here.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "rondo/rondo.h"
#include "rondo/rondo.hpp"

struct rondo_communicator {
  rondo::Communicator communicator;
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
/// The same where there may be no memory; `text` is a literal.
rondo_code report(rondo_code code, const char* text);

/// The code of what `body` returns, whatever it throws.
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

inline Status refuse(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

inline Status check_pointer(const void* pointer, const char* what) {
  return pointer != nullptr ? Status() : refuse(fmt::format("{} is null", what));
}

/// Puts the value with that number into `into`.
template <class Enum>
Status read_value(int32_t number, int count, const char* what, Enum& into) {
  if (number < 0 || number >= count) {
    return refuse(fmt::format("unknown {} {}: 0 to {} exist", what, number, count - 1));
  }
  into = static_cast<Enum>(number);
  return {};
}

// ---- structs that grow

/// The caller's struct, of whatever version, in this library's: what an older one lacks has its
/// default, and what a newer one has besides must be zero.
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
        "{}.size is {}, here it is {}, and something behind that is set: this library is older "
        "than the program's header and does not know it",
        what, size, sizeof known));
  }
  std::memcpy(&known, given, std::min(size, sizeof known));
  if (known.reserved != 0)
    return refuse(fmt::format("{}.reserved is {}, not 0", what, known.reserved));
  return {};
}

/// Fills the first `size` bytes of a struct of the caller's: what this library does not know is 0.
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

/// A count, or an offset, for each rank; null: none.
inline std::span<const size_t> for_each_rank(const size_t* numbers, const Communicator& c) {
  return numbers == nullptr ? std::span<const size_t>()
                            : std::span<const size_t>(numbers, static_cast<size_t>(c.size()));
}

/// What every call has, as C gives it; those that have no type or operator leave it out.
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

/// A call that C's side has refused must spoil the group that it stands in, as C++'s own refusals
/// do: so it is made all the same, with arguments that are refused everywhere.
template <class Body>
void spoil(const Given& given, Arguments arguments, const Body& body) {
  if (given.communicator == nullptr) return;
  arguments.type = static_cast<DataType>(0xff);
  arguments.options.timeout = std::chrono::milliseconds(-1);
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
    // First of all, so that nothing is under way when there is no memory for its handle.
    auto handle = std::make_unique<rondo_work>(rondo_work{Work(nullptr)});
    handle->work = body(given.communicator->communicator, arguments);
    RONDO_RETURN_IF_ERROR(handle->work.status());
    if (work != nullptr) *work = handle.release();
    return {};
  });
}

}  // namespace rondo::c_api
