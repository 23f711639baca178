// See errors.hpp.
#include "nccl/errors.hpp"

#include <dlfcn.h>

#include <mutex>

#include "nccl/comm.hpp"

namespace rondo::nccl {
namespace {

std::mutex last_mutex;
std::string last_of_process;  // guarded by last_mutex
thread_local std::string last_of_thread;
thread_local std::string shown;  // what this thread's last ncclGetLastError returned

/// Whether the program has an ncclGetLastError of its own, which nccl-tests have for old libraries.
bool is_last_error_hidden() {
  static const bool it = [] {
    void* const seen = dlsym(RTLD_DEFAULT, "ncclGetLastError");
    return seen != nullptr && seen != reinterpret_cast<void*>(&ncclGetLastError);
  }();
  return it;
}

}  // namespace

ncclResult_t result_of(Code code) {
  switch (code) {
    case Code::kOk:
      return ncclSuccess;
    case Code::kInvalidArgument:
      return ncclInvalidArgument;
    case Code::kUnavailable:
    case Code::kMismatch:
      return ncclInvalidUsage;
    case Code::kPeerDied:
    case Code::kAborted:
      return ncclRemoteError;
    case Code::kTimeout:
      return ncclTimeout;
    case Code::kResourceExhausted:
    case Code::kSystem:
    case Code::kBootstrap:
    case Code::kDataError:
      break;
  }
  return ncclSystemError;
}

ncclResult_t report(const Status& status) {
  if (status.ok()) return ncclSuccess;
  last_of_thread = status.message();
  if (is_last_error_hidden()) log(LogLevel::kError, status.message());
  const std::lock_guard lock(last_mutex);
  last_of_process = status.message();
  return result_of(status.code());
}

std::string last_sentence() {
  if (!last_of_thread.empty()) return last_of_thread;
  const std::lock_guard lock(last_mutex);
  return last_of_process;
}

}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "CUDA failed (ncclGetLastError says how)";
    case ncclSystemError:
      return "the system, or the way to other ranks, failed (ncclGetLastError says how)";
    case ncclInternalError:
      return "rondo failed";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage (ncclGetLastError says why)";
    case ncclRemoteError:
      return "another rank has ended, left or failed";
    case ncclInProgress:
      return "in progress";
    case ncclTimeout:
      return "nothing moved for the whole time limit";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  try {
    std::string sentence;
    if (const auto found = find(comm, "ncclGetLastError"); found.ok()) {
      sentence = found.value()->failure().message();
    }
    shown = sentence.empty() ? last_sentence() : sentence;
    return shown.c_str();
  } catch (...) {
    return "";
  }
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclGetErrorString")]] decltype(ncclGetErrorString) pncclGetErrorString;
[[gnu::alias("ncclGetLastError")]] decltype(ncclGetLastError) pncclGetLastError;
}
#pragma GCC visibility pop
