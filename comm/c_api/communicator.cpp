// rondo.h without its collectives: errors, versions, creation, work, a communicator's state,
// memory, messages.
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/c_api/shim.hpp"

namespace rondo::c_api {
namespace {

constexpr int kNone = -1;  // the rank and the size of a null communicator
constexpr int kLogLevels = 5;
static_assert(kUniqueIdChars < sizeof(rondo_unique_id));

thread_local std::string error_text;
thread_local const char* last_error = "";

rondo_config default_config() {
  const Config cpp;
  rondo_config c{};
  c.rank = cpp.rank;
  c.world_size = cpp.world_size;
  c.stall_timeout_ms = cpp.stall_timeout.count();
  c.bootstrap_timeout_ms = cpp.bootstrap_timeout.count();
  c.device = cpp.device;
  return c;
}

rondo_call_options default_options() {
  rondo_call_options c{};
  c.factor = CallOptions{}.factor;
  return c;
}

AllGather all_gather_of(const rondo_config& c) {
  if (c.all_gather == nullptr) return {};
  return [c](std::string_view own) -> Result<std::vector<std::string>> {
    // The callback writes the blobs of world_size ranks, which it must know itself.
    if (c.world_size < 1) return refuse("rondo_config.all_gather needs world_size");
    const auto ranks = static_cast<size_t>(c.world_size);
    std::string all(ranks * own.size(), '\0');
    if (const int failed = c.all_gather(c.all_gather_context, own.data(), own.size(), all.data())) {
      return Status(Code::kBootstrap, fmt::format("it returned {}", failed));
    }
    std::vector<std::string> blobs;
    for (size_t r = 0; r < ranks; ++r) blobs.push_back(all.substr(r * own.size(), own.size()));
    return blobs;
  };
}

Status read_config(const rondo_config* given, Config& config) {
  rondo_config c = default_config();
  RONDO_TRY(read_struct(given, "rondo_config", c));
  const auto text = [](const char* string) { return std::string(string ? string : ""); };
  config.rank = c.rank;
  config.world_size = c.world_size;
  config.rendezvous = text(c.rendezvous);
  if (c.name != nullptr) config.name = c.name;
  config.stall_timeout = std::chrono::milliseconds(c.stall_timeout_ms);
  config.bootstrap_timeout = std::chrono::milliseconds(c.bootstrap_timeout_ms);
  config.channels = c.channels;
  config.max_channels = c.max_channels;
  config.slots = c.slots;
  config.slot_bytes = c.slot_bytes;
  config.pace = text(c.pace);
  config.unique_id = text(c.unique_id);
  config.all_gather = all_gather_of(c);
  config.links = text(c.links);
  config.reproducible = c.reproducible != 0;
  config.device = c.device;
  if (c.reserved_too != 0) {
    return refuse(fmt::format("rondo_config.reserved_too is {}, not 0", c.reserved_too));
  }
  if (c.reserved_last != 0) {
    return refuse(fmt::format("rondo_config.reserved_last is {}, not 0", c.reserved_last));
  }
  return read_value(c.algorithm, kAlgorithms, "algorithm", config.algorithm);
}

}  // namespace

rondo_code report(const Status& status) {
  if (status.ok()) return RONDO_OK;
  error_text = status.message();
  last_error = error_text.c_str();
  return static_cast<rondo_code>(status.code());
}

rondo_code report(rondo_code code, const char* text) {
  last_error = text;
  return code;
}

Status read_arguments(const Given& given, Arguments& into) {
  RONDO_TRY(check_pointer(given.communicator, "the communicator"));
  RONDO_TRY(read_value(given.type, kDataTypes, "data type", into.type));
  RONDO_TRY(read_value(given.op, kReduceOps, "operator", into.op));
  rondo_call_options c = default_options();
  RONDO_TRY(read_struct(given.options, "rondo_call_options", c));
  into.options.stall_timeout = std::chrono::milliseconds(c.stall_timeout_ms);
  into.options.factor = c.factor;
  into.options.stream = c.stream;
  into.options.layout = c.layout;
  return read_value(c.algorithm, kAlgorithms, "algorithm", into.options.algorithm);
}

namespace {

/// "1.2.3" as 10203.
constexpr int32_t number_of(std::string_view version) {
  int32_t whole = 0, part = 0;
  for (const char c : version) {
    if (c == '.') {
      whole = 100 * (whole + part);
      part = 0;
    } else {
      part = 10 * part + (c - '0');
    }
  }
  return whole + part;
}
static_assert(number_of("1.2.3") == 10203);

}  // namespace

}  // namespace rondo::c_api

using namespace rondo;  // the functions are C's, all that they use is rondo's
using namespace rondo::c_api;

const char* rondo_last_error(void) { return last_error; }

const char* rondo_code_name(rondo_code code) { return rondo::to_string(static_cast<Code>(code)); }

int32_t rondo_version(void) { return number_of(RONDO_VERSION); }

rondo_code rondo_make_unique_id(rondo_unique_id* id) {
  return guarded({{id, "the place for the id"}}, [&]() -> Status {
    auto made = rondo::make_unique_id();
    *id = {};
    if (made.ok()) made->copy(id->text, sizeof id->text - 1);
    return made.status();
  });
}

void rondo_config_init(rondo_config* config, size_t size) {
  write_sized_struct(default_config(), config, size);
}

void rondo_call_options_init(rondo_call_options* options, size_t size) {
  write_sized_struct(default_options(), options, size);
}

rondo_code rondo_place_from_launcher(rondo_place* place, size_t size) {
  return guarded({{place, "the place for the answer"}}, [&]() -> Status {
    const auto found = RONDO_TRY(rondo::place_from_launcher());
    const Place it = found.value_or(Place{.world_size = 0, .local_world_size = 0});
    write_struct<rondo_place>({it.rank, it.world_size, it.local_rank, it.local_world_size}, place,
                              size);
    return {};
  });
}

rondo_code rondo_create(rondo_communicator** communicator, const rondo_config* config) {
  return guarded({{communicator, "the place for the communicator"}}, [&]() -> Status {
    *communicator = nullptr;
    Config settings;
    RONDO_TRY(read_config(config, settings));
    auto made = Communicator::create(settings);
    if (made.ok()) *communicator = new rondo_communicator{std::move(*made)};
    return made.status();
  });
}

rondo_code rondo_create_async(rondo_pending** pending, const rondo_config* config) {
  return guarded({{pending, "the place for the handle"}}, [&]() -> Status {
    *pending = nullptr;
    Config settings;
    RONDO_TRY(read_config(config, settings));
    *pending = new rondo_pending{Communicator::create_async(settings)};
    return {};
  });
}

rondo_code rondo_pending_test(const rondo_pending* pending, int* over) {
  return guarded({{pending, "the handle"}, {over, "the place for the answer"}}, [&]() -> Status {
    *over = pending->future.wait_for(std::chrono::seconds(0)) == std::future_status::ready ? 1 : 0;
    return {};
  });
}

rondo_code rondo_pending_wait(rondo_pending* pending, rondo_communicator** communicator) {
  return guarded({{pending, "the handle"}, {communicator, "the place for the communicator"}},
                 [&]() -> Status {
                   *communicator = nullptr;
                   const std::unique_ptr<rondo_pending> handle(pending);
                   auto made = handle->future.get();
                   if (made.ok()) *communicator = new rondo_communicator{std::move(*made)};
                   return made.status();
                 });
}

rondo_code rondo_split(rondo_communicator* communicator, int32_t color, int32_t key,
                       rondo_communicator** part) {
  return rondo_split_named(communicator, color, key, nullptr, part);
}

rondo_code rondo_split_named(rondo_communicator* communicator, int32_t color, int32_t key,
                             const char* name, rondo_communicator** part) {
  return guarded({{communicator, "the communicator"}, {part, "the place for the communicator"}},
                 [&]() -> Status {
                   *part = nullptr;
                   auto made =
                       communicator->communicator.split(color, key, name != nullptr ? name : "");
                   if (made.ok() && *made) *part = new rondo_communicator{std::move(**made)};
                   return made.status();
                 });
}

rondo_code rondo_duplicate(rondo_communicator* communicator, rondo_communicator** same) {
  return guarded({{communicator, "the communicator"}, {same, "the place for the communicator"}},
                 [&]() -> Status {
                   *same = nullptr;
                   auto made = communicator->communicator.duplicate();
                   if (made.ok()) *same = new rondo_communicator{std::move(*made)};
                   return made.status();
                 });
}

rondo_code rondo_shrink(rondo_communicator* communicator, int64_t patience_ms,
                        rondo_communicator** left) {
  return guarded({{communicator, "the communicator"}, {left, "the place for the communicator"}},
                 [&]() -> Status {
                   *left = nullptr;
                   auto made =
                       communicator->communicator.shrink(std::chrono::milliseconds(patience_ms));
                   if (made.ok()) *left = new rondo_communicator{std::move(*made)};
                   return made.status();
                 });
}

int rondo_former_rank(const rondo_communicator* communicator, int rank) {
  if (communicator == nullptr) return kNone;
  const std::vector<int>& former = communicator->communicator.former_ranks();
  return rank >= 0 && static_cast<size_t>(rank) < former.size() ? former[static_cast<size_t>(rank)]
                                                                : kNone;
}

void rondo_destroy(rondo_communicator* communicator) { delete communicator; }

int rondo_rank(const rondo_communicator* communicator) {
  return communicator ? communicator->communicator.rank() : kNone;
}

int rondo_size(const rondo_communicator* communicator) {
  return communicator ? communicator->communicator.size() : kNone;
}

int rondo_host(const rondo_communicator* communicator, int rank) {
  return communicator == nullptr ? kNone : communicator->communicator.host_of(rank);
}

// ---- work

void rondo_set_wait_callback(void (*callback)(void* context), void* context) {
  rondo::set_wait_callback(callback, context);
}

rondo_code rondo_work_wait(rondo_work* work) {
  return guarded({{work, "the work"}}, [&] { return work->work.wait(); });
}

rondo_code rondo_work_test(const rondo_work* work, int* ended) {
  return guarded({{work, "the work"}, {ended, "the place for the answer"}}, [&]() -> Status {
    *ended = work->work.test() ? 1 : 0;
    return {};
  });
}

rondo_code rondo_work_status(const rondo_work* work) {
  return guarded({{work, "the work"}}, [&] { return work->work.status(); });
}

rondo_code rondo_get_work_times(const rondo_work* work, rondo_work_times* times, size_t size) {
  return guarded({{work, "the work"}, {times, "the place for the times"}}, [&]() -> Status {
    const Work::Times t = work->work.times();
    write_struct<rondo_work_times>({t.issued_ns, t.started_ns, t.ended_ns}, times, size);
    return {};
  });
}

void rondo_work_release(rondo_work* work) { delete work; }

// ---- the state of a communicator

rondo_code rondo_finish(rondo_communicator* communicator) {
  return guarded({{communicator, "the communicator"}},
                 [&] { return communicator->communicator.finish(); });
}

rondo_code rondo_abort(rondo_communicator* communicator, const char* reason) {
  return guarded({{communicator, "the communicator"}}, [&]() -> Status {
    communicator->communicator.abort(reason ? reason : "no reason given");
    return {};
  });
}

rondo_code rondo_status(const rondo_communicator* communicator) {
  return guarded({{communicator, "the communicator"}},
                 [&] { return communicator->communicator.status(); });
}

rondo_code rondo_get_plan(const rondo_communicator* communicator, rondo_collective collective,
                          size_t count, rondo_data_type type, rondo_reduce_op op, int direct,
                          rondo_algorithm algorithm, rondo_plan* plan, size_t size) {
  return guarded({{communicator, "the communicator"}, {plan, "the place for the plan"}},
                 [&]() -> Status {
                   Collective which{};
                   DataType element{};
                   Algorithm how{};
                   RONDO_TRY(read_value(collective, rondo::kCollectives, "collective", which));
                   RONDO_TRY(read_value(type, rondo::kDataTypes, "data type", element));
                   RONDO_TRY(read_value(algorithm, rondo::kAlgorithms, "algorithm", how));
                   ReduceOp reduction{};
                   RONDO_TRY(read_value(op, rondo::kReduceOps, "operator", reduction));
                   const Plan p = RONDO_TRY(communicator->communicator.find_plan(
                       which, count, element, direct != 0, how, reduction));
                   write_struct<rondo_plan>({static_cast<rondo_algorithm>(p.algorithm), p.channels,
                                             p.predicted_us, p.bytes_sent_per_rank},
                                            plan, size);
                   return {};
                 });
}

rondo_code rondo_get_stats(const rondo_communicator* communicator, rondo_stats* stats,
                           size_t size) {
  return guarded(
      {{communicator, "the communicator"}, {stats, "the place for the counters"}}, [&]() -> Status {
        const Stats s = communicator->communicator.stats();
        write_struct<rondo_stats>({s.operations, s.bytes_sent, s.shared_bytes}, stats, size);
        return {};
      });
}

rondo_code rondo_flight_record(const rondo_communicator* communicator, char* buffer,
                               size_t capacity, size_t* needed) {
  return guarded({{communicator, "the communicator"}}, [&]() -> Status {
    if (capacity > 0) RONDO_TRY(check_pointer(buffer, "the buffer"));
    const std::string text = communicator->communicator.flight_record();
    if (capacity > 0) buffer[text.copy(buffer, capacity - 1)] = '\0';
    if (needed != nullptr) *needed = text.size() + 1;
    return {};
  });
}

// ---- library memory, messages

void* rondo_alloc(size_t bytes) {
  void* memory = nullptr;
  (void)guarded([&]() -> Status {
    memory = rondo::alloc(bytes);
    return {};
  });
  return memory;
}

void rondo_free(void* pointer) { rondo::dealloc(pointer); }

rondo_code rondo_register_memory(void* pointer, size_t bytes) {
  return guarded([&] { return rondo::register_memory(pointer, bytes); });
}

rondo_code rondo_unregister_memory(void* pointer) {
  return guarded([&] { return rondo::unregister_memory(pointer); });
}

int rondo_is_library_memory(const void* pointer, size_t bytes) {
  return rondo::is_library_memory(pointer, bytes) ? 1 : 0;
}

rondo_code rondo_device_alloc(size_t bytes, int32_t device, void** pointer) {
  return guarded({{pointer, "the place for the pointer"}}, [&]() -> Status {
    *pointer = nullptr;
    auto made = rondo::device_alloc(bytes, device);
    if (made.ok()) *pointer = *made;
    return made.status();
  });
}

rondo_code rondo_device_free(void* pointer) {
  return guarded([&] { return rondo::device_free(pointer); });
}

rondo_code rondo_register_device_memory(rondo_communicator* communicator, void* pointer,
                                        size_t bytes) {
  return guarded({{communicator, "the communicator"}},
                 [&] { return communicator->communicator.register_device_memory(pointer, bytes); });
}

rondo_code rondo_unregister_device_memory(rondo_communicator* communicator, void* pointer) {
  return guarded({{communicator, "the communicator"}},
                 [&] { return communicator->communicator.unregister_device_memory(pointer); });
}

rondo_code rondo_set_log_callback(rondo_log_callback callback, void* context) {
  return guarded([&]() -> Status {
    if (callback == nullptr) {
      rondo::set_log_callback({});
      return {};
    }
    rondo::set_log_callback([=](LogLevel level, std::string_view message) {
      callback(context, static_cast<rondo_log_level>(level), std::string(message).c_str());
    });
    return {};
  });
}

rondo_code rondo_set_log_level(rondo_log_level level) {
  return guarded([&]() -> Status {
    LogLevel wanted{};
    RONDO_TRY(read_value(level, kLogLevels, "log level", wanted));
    rondo::set_log_level(wanted);
    return {};
  });
}
