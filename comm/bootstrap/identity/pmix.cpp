// See pmix.hpp. The header's macros are not used: some call functions of the library, which is not
// linked, so that its absence stops nothing.
#include "comm/bootstrap/identity/pmix.hpp"

#include <dlfcn.h>
#include <pmix.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace rondo::comm {
namespace {

constexpr const char* kLibrary = "libpmix.so.2";
constexpr const char* kKey = "rondo.id";
constexpr std::chrono::milliseconds kAgain{20};

/// The library's functions.
struct PmixCalls {
  decltype(&::PMIx_Init) init = nullptr;
  decltype(&::PMIx_Finalize) finalize = nullptr;
  decltype(&::PMIx_Get) get = nullptr;
  decltype(&::PMIx_Get_nb) get_nb = nullptr;
  decltype(&::PMIx_Put) put = nullptr;
  decltype(&::PMIx_Commit) commit = nullptr;
  decltype(&::PMIx_Error_string) error_string = nullptr;

  Status load() {
    void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const reason = ::dlerror();
      return {Code::kUnavailable,
              "cannot load PMIx's library: " + std::string(reason != nullptr ? reason : kLibrary) +
                  "; install Debian's libpmix2"};
    }
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    const bool all = find(init, "PMIx_Init") && find(finalize, "PMIx_Finalize") &&
                     find(get, "PMIx_Get") && find(get_nb, "PMIx_Get_nb") &&
                     find(put, "PMIx_Put") && find(commit, "PMIx_Commit") &&
                     find(error_string, "PMIx_Error_string");
    if (all) return {};
    return {Code::kUnavailable, std::string(kLibrary) + " lacks functions of PMIx"};
  }
};

/// The process's connection to the launcher's server.
class Client {
 public:
  static Client& of_process() {
    static Client client;
    return client;
  }
  /// A forked child is not connected.
  ~Client() {
    if (place_ && pid_ == getpid()) (void)calls_.finalize(nullptr, 0);
  }
  Client() = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Result<Place> place() {
    const std::lock_guard lock(mutex_);
    if (place_) return *place_;
    RONDO_TRY(calls_.load());
    RONDO_TRY(check("PMIx_Init", calls_.init(&self_, nullptr, 0)));
    pid_ = getpid();
    auto found = read_place();
    if (found.ok()) {
      place_ = *found;
    } else {
      (void)calls_.finalize(nullptr, 0);
    }
    return found;
  }

  Status publish(const std::function<std::string()>& make) {
    const std::lock_guard lock(mutex_);
    if (has_published_) return {};
    std::string text = make();
    pmix_value_t value{};
    value.type = PMIX_STRING;
    value.data.string = text.data();
    RONDO_TRY(check("PMIx_Put", calls_.put(PMIX_GLOBAL, kKey, &value)));
    RONDO_TRY(check("PMIx_Commit", calls_.commit()));
    has_published_ = true;
    return {};
  }

  /// Open MPI 4 does not keep to PMIX_TIMEOUT for a rank of another host, so the wait is our own. On a
  /// busy machine its server may also answer "not found" before rank 0 has published: that is asked
  /// again.
  Result<std::string> published(std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (true) {
      auto answer = std::make_shared<PmixAnswer>();
      auto kept =
          std::make_unique<std::shared_ptr<PmixAnswer>>(answer);  // until it comes, or for ever
      const pmix_proc_t first = process(0);
      RONDO_TRY(check("PMIx_Get_nb", calls_.get_nb(&first, kKey, nullptr, 0, take, kept.get())));
      (void)kept.release();
      std::unique_lock answer_lock(answer->mutex);
      const bool has_come = answer->came.wait_until(answer_lock, deadline,
                                                    [&] { return answer->status.has_value(); });
      if (!has_come) return Status(Code::kBootstrap, "nothing came within the timeout");
      const auto next = std::chrono::steady_clock::now() + kAgain;
      if (*answer->status != PMIX_ERR_NOT_FOUND || next >= deadline) {
        RONDO_TRY(check("PMIx_Get_nb", *answer->status));
        return answer->text;
      }
      std::this_thread::sleep_until(next);
    }
  }

 private:
  Status check(const std::string& call, pmix_status_t code) {
    if (code == PMIX_SUCCESS) return {};
    return {Code::kUnavailable, call + " failed: " + calls_.error_string(code)};
  }

  Result<Place> read_place() {
    Place place;
    place.rank = static_cast<int>(self_.rank);
    place.world_size = RONDO_TRY(get(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE));
    place.local_world_size = RONDO_TRY(get(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE));
    place.local_rank = RONDO_TRY(get(self_.rank, PMIX_LOCAL_RANK));
    return place;
  }

  pmix_proc_t process(pmix_rank_t rank) const {
    pmix_proc_t named = self_;
    named.rank = rank;
    return named;
  }

  /// What the library's thread gives a waiting rank, which may have gone on.
  struct PmixAnswer {
    std::mutex mutex;
    std::condition_variable came;
    std::optional<pmix_status_t> status;
    std::string text;
  };
  static void take(pmix_status_t status, pmix_value_t* value, void* kept) {
    const std::unique_ptr<std::shared_ptr<PmixAnswer>> owned(
        static_cast<std::shared_ptr<PmixAnswer>*>(kept));
    PmixAnswer& answer = **owned;
    const std::lock_guard lock(answer.mutex);
    answer.status = status;
    if (status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_STRING) {
      answer.text = value->data.string;
    }
    answer.came.notify_all();
  }

  /// A number.
  Result<int> get(pmix_rank_t rank, const char* key) {
    const pmix_proc_t proc = process(rank);
    pmix_value_t* value = nullptr;
    RONDO_TRY(check("PMIx_Get of " + std::string(key), calls_.get(&proc, key, nullptr, 0, &value)));
    const pmix_data_type_t type = value->type;
    const int found =
        type == PMIX_UINT16 ? value->data.uint16 : static_cast<int>(value->data.uint32);
    std::free(value);
    if (type == PMIX_UINT16 || type == PMIX_UINT32) return found;
    return Status(Code::kUnavailable, "PMIx gave " + std::string(key) + " as another type");
  }

  std::mutex mutex_;
  PmixCalls calls_;
  pmix_proc_t self_{};
  pid_t pid_ = 0;
  std::optional<Place> place_;
  bool has_published_ = false;
};

}  // namespace

Result<Place> pmix_place() { return Client::of_process().place(); }
Status pmix_publish(const std::function<std::string()>& make) {
  return Client::of_process().publish(make);
}
Result<std::string> pmix_published(std::chrono::milliseconds timeout) {
  return Client::of_process().published(timeout);
}

}  // namespace rondo::comm
