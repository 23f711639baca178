// From rondo's Status to NCCL's result codes, and the sentence that ncclGetLastError shows.
#pragma once

#include <new>
#include <string>

#include "nccl/abi.h"
#include "rondo/rondo.hpp"

namespace rondo::nccl {

/// NCCL's number for a failure.
ncclResult_t result_of(Code code);

/// Remembers the sentence of a failure, for this thread and as the process's last one, and returns
/// its number; logs it if the program cannot ask for it. ncclSuccess if `status` is ok.
ncclResult_t report(const Status& status);

/// The sentence of this thread's last failure, else of the process's; empty before any.
std::string last_sentence();

inline Status refuse(std::string sentence) { return {Code::kInvalidArgument, std::move(sentence)}; }
/// What rondo does not have, or not in this state: ncclInvalidUsage.
inline Status unsupported(std::string sentence) {
  return {Code::kUnavailable, std::move(sentence)};
}

inline Status check_pointer(const void* pointer, const char* call, const char* what) {
  return pointer != nullptr ? Status() : refuse(std::string(call) + ": " + what + " is null");
}

/// Runs `body`, which returns a Status; no exception leaves.
template <class Body>
ncclResult_t guarded(const Body& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return ncclSystemError;
  } catch (...) {
    return ncclInternalError;
  }
}

}  // namespace rondo::nccl
