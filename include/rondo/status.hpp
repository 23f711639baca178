// Status and Result: the values by which every recoverable failure of rondo is returned, because
// one thread finds a failure and another reports it. Broken invariants are not failures: they abort
// through RONDO_CHECK with the expression and its values. No exceptions cross rondo's interface;
// the one that its headers throw (CommunicationHook::next()) comes back as an error of the step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace rondo {

/// Stable, append-only.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 1,    // a value the caller passed; nothing has happened
  kUnavailable = 2,        // this build, machine or collective does not have it
  kResourceExhausted = 3,  // memory, descriptors, address space
  kMismatch = 4,           // ranks disagree about the operation
  kPeerDied = 5,           // a rank ended or left during an operation
  kTimeout = 6,            // nothing moved for the whole stall deadline
  kAborted = 7,            // Communicator::abort
  kSystem = 8,             // a system call failed; the message holds errno's text
  kBootstrap = 9,          // ranks could not find or authenticate each other
  kDataError = 10,         // a file with invalid contents
};

/// "ok", "invalid argument", ...
const char* to_string(Code code);

/// A code and, unless it is kOk, a sentence that names the value, the rank and the remedy.
/// Thread-compatible; an ok Status owns nothing and costs one null pointer.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : error_(code == Code::kOk ? nullptr
                                 : std::make_shared<const Error>(Error{code, std::move(message)})) {
  }

  bool ok() const { return error_ == nullptr; }
  Code code() const { return error_ ? error_->code : Code::kOk; }
  const std::string& message() const {
    static const std::string empty;
    return error_ ? error_->message : empty;
  }
  /// "mismatch: rank 0 called ..."
  std::string to_string() const {
    return ok() ? "ok" : std::string(rondo::to_string(code())) + ": " + message();
  }

 private:
  struct Error {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

/// A value, or the Status that explains why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  /// REQUIRES: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

inline const char* to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kMismatch:
      return "mismatch";
    case Code::kPeerDied:
      return "peer died";
    case Code::kTimeout:
      return "timeout";
    case Code::kAborted:
      return "aborted";
    case Code::kSystem:
      return "system error";
    case Code::kBootstrap:
      return "bootstrap failed";
    case Code::kDataError:
      return "bad data";
  }
  return "unknown code";
}

namespace detail {
// What RONDO_TRY does with either kind of outcome.
inline Status status_of(Status&& status) { return std::move(status); }
inline void value_of(const Status&) {}
template <class T>
Status status_of(Result<T>&& result) {
  return result.status();
}
template <class T>
T value_of(Result<T>&& result) {
  return std::move(result).value();
}
}  // namespace detail

}  // namespace rondo

/// Checks an invariant of rondo itself: if broken, prints the expression and aborts. Never for bad
/// input.
#define RONDO_CHECK(condition, ...)                                                                \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      std::fprintf(stderr, "rondo: %s:%d: broken invariant: %s ", __FILE__, __LINE__, #condition); \
      __VA_OPT__(std::fprintf(stderr, __VA_ARGS__);)                                               \
      std::fputc('\n', stderr);                                                                    \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)

/// The value of a Result, nothing of a Status; a failure is returned from the enclosing function.
/// A statement expression, of GCC and Clang: use it as a statement, or as a whole initialiser,
/// argument or right side.
#define RONDO_TRY(...)                                            \
  __extension__({                                                 \
    auto rondo_tried_ = (__VA_ARGS__);                            \
    if (!rondo_tried_.ok()) {                                     \
      return ::rondo::detail::status_of(std::move(rondo_tried_)); \
    }                                                             \
    ::rondo::detail::value_of(std::move(rondo_tried_));           \
  })
