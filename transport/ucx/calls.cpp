#include "transport/ucx/calls.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/ucx/rdma.hpp"

namespace rondo::transport::ucx {
namespace {

// No handlers of signals, which are the program's; nothing printed, as rondo reports what fails; and
// the process's memory calls unpatched, if there is no RDMA for which UCX would have to watch them.
constexpr const char* kQuiet[] = {
    "UCX_HANDLE_ERRORS=none", "UCX_ERROR_SIGNALS=",         "UCX_DEBUG_SIGNO=0",
    "UCX_LOG_LEVEL=fatal",    "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_MEM_MMAP_HOOK_MODE=none"};

bool is_set(std::string_view setting) {
  return std::getenv(std::string(setting.substr(0, setting.find('='))).c_str()) != nullptr;
}

/// Sets what UCX reads in its constructor, for the time that takes. What the user has set stays.
/// Other threads may call getenv() at any time, and setenv() would free what they read: so the
/// environment is another array meanwhile, which is kept for ever.
class QuietConstructor {
 public:
  QuietConstructor() : before_(environ) {
    static auto& kept = *new std::vector<std::vector<char*>>;
    std::vector<char*> settings;
    for (const char* const setting : kQuiet) {
      const bool is_hook = setting == kQuiet[std::size(kQuiet) - 1];
      const bool wanted = !is_hook || !has_rdma();
      if (wanted && !is_set(setting)) settings.push_back(const_cast<char*>(setting));
    }
    for (char** each = before_; each != nullptr && *each != nullptr; ++each) {
      settings.push_back(*each);
    }
    settings.push_back(nullptr);
    kept.push_back(std::move(settings));
    meanwhile_ = kept.back().data();
    __atomic_store_n(&environ, meanwhile_, __ATOMIC_RELEASE);
  }
  /// Where a thread has changed the environment since, it stays as that one has made it.
  ~QuietConstructor() {
    char** expected = meanwhile_;
    __atomic_compare_exchange_n(&environ, &expected, before_, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
  }
  QuietConstructor(const QuietConstructor&) = delete;
  QuietConstructor& operator=(const QuietConstructor&) = delete;

 private:
  char** const before_;
  char** meanwhile_ = nullptr;
};

/// The library, which stays loaded: it cannot be unloaded safely.
void* open_library(const char* name) {
  const QuietConstructor quiet;
  return ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

/// Looks functions up, and remembers the first that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

const char* find_all(void* library, Calls* calls) {
  Symbols symbols(library);
  symbols.find(calls->get_version, "ucp_get_version");
  symbols.find(calls->init_version, "ucp_init_version");
  symbols.find(calls->cleanup, "ucp_cleanup");
  symbols.find(calls->config_read, "ucp_config_read");
  symbols.find(calls->config_modify, "ucp_config_modify");
  symbols.find(calls->config_release, "ucp_config_release");
  symbols.find(calls->worker_create, "ucp_worker_create");
  symbols.find(calls->worker_destroy, "ucp_worker_destroy");
  symbols.find(calls->worker_query, "ucp_worker_query");
  symbols.find(calls->context_query, "ucp_context_query");
  symbols.find(calls->worker_release_address, "ucp_worker_release_address");
  symbols.find(calls->worker_progress, "ucp_worker_progress");
  symbols.find(calls->ep_create, "ucp_ep_create");
  symbols.find(calls->ep_close_nbx, "ucp_ep_close_nbx");
  symbols.find(calls->ep_flush_nbx, "ucp_ep_flush_nbx");
  symbols.find(calls->tag_send_nbx, "ucp_tag_send_nbx");
  symbols.find(calls->tag_recv_nbx, "ucp_tag_recv_nbx");
  symbols.find(calls->request_cancel, "ucp_request_cancel");
  symbols.find(calls->request_free, "ucp_request_free");
  symbols.find(calls->request_check_status, "ucp_request_check_status");
  symbols.find(calls->status_string, "ucs_status_string");
  return symbols.missing();
}

}  // namespace

Result<const Calls*> load_ucx() {
  static std::mutex mutex;
  static Calls calls;
  static bool loaded = false;
  const std::lock_guard lock(mutex);
  if (loaded) return &calls;
  const char* const chosen = std::getenv("RONDO_UCX");
  const std::string name = chosen != nullptr && *chosen != 0 ? chosen : "libucp.so.0";
  void* const library = open_library(name.c_str());
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return Status(Code::kUnavailable,
                  "cannot load UCX, which carries messages between hosts: " +
                      std::string(reason != nullptr ? reason : name.c_str()) +
                      "; install Debian's libucx0, or set RONDO_UCX to the path of a libucp.so.0");
  }
  if (const char* const missing = find_all(library, &calls)) {
    return Status(Code::kUnavailable, "the UCX of " + name + " has no " + missing +
                                          ": rondo needs UCX 1.13 or later; RONDO_UCX names "
                                          "another libucp.so.0");
  }
  loaded = true;
  return &calls;
}

}  // namespace rondo::transport::ucx
