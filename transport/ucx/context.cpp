#include "transport/ucx/context.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "transport/ucx/rdma.hpp"
#include "transport/ucx/wire.hpp"

namespace rondo::transport::ucx {
namespace {

// Everything between hosts: shared memory and loops to oneself are other transports' work. A UCX that
// knows CUDA would call it wherever it may: only by GPUDirect.
constexpr const char *kTransports = "^sm,self,cuda", *kGpuTransports = "^sm,self";

Status validate(const Settings& settings) {
  const auto refuse = [](const char* name, size_t value, const char* range) {
    return Status(Code::kInvalidArgument, std::string("UCX transport: ") + name + " is " +
                                              std::to_string(value) + ", must be " + range);
  };
  if (settings.channels < 1 || settings.channels > 65535) {
    return refuse("channels", static_cast<size_t>(settings.channels), "1..65535");
  }
  if (settings.depth < 1 || settings.depth > 65536) {
    return refuse("depth", settings.depth, "1..65536");
  }
  if (settings.slot_bytes < 1 || settings.slot_bytes > std::numeric_limits<uint32_t>::max()) {
    return refuse("slot_bytes", settings.slot_bytes, "1..2^32-1");
  }
  if (settings.first_port < 0 || settings.first_port > settings.last_port ||
      settings.last_port > 65535) {
    return refuse("last_port", static_cast<size_t>(settings.last_port), "first_port..65535");
  }
  return {};
}

bool user_has_set(const char* name) { return std::getenv(name) != nullptr; }

}  // namespace

UcxContext::UcxContext(const Settings& settings) : settings_(settings), owner_(::getpid()) {}

UcxContext::~UcxContext() {
  if (abandoned_ || is_forked_copy()) return;
  for (const ucp_worker_h worker : workers_) calls_->worker_destroy(worker);
  for (const ucp_context_h context : contexts_) calls_->cleanup(context);
}

bool UcxContext::is_forked_copy() const { return ::getpid() != owner_; }

Status UcxContext::failed(const std::string& doing, ucs_status_t status) const {
  return {Code::kSystem, "UCX failed while " + doing + ": " + calls_->status_string(status)};
}

Status UcxContext::open() {
  RONDO_TRY(validate(settings_));
  calls_ = RONDO_TRY(load_ucx());
  unsigned major = 0, minor = 0, release = 0;
  calls_->get_version(&major, &minor, &release);
  const AddressHeader header{.magic = kAddressMagic,
                             .major = static_cast<uint16_t>(major),
                             .minor = static_cast<uint16_t>(minor),
                             .channels = static_cast<uint32_t>(settings_.channels),
                             .depth = settings_.depth,
                             .slot_bytes = settings_.slot_bytes};
  address_.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  const bool has_ports = settings_.first_port != 0 && !user_has_set("UCX_TCP_PORT_RANGE");
  if (!has_ports) RONDO_TRY(make_context(0));
  for (int channel = 0; channel < settings_.channels; ++channel) {
    RONDO_TRY(has_ports ? make_worker_at_a_port() : make_worker());
    RONDO_TRY(append_address(workers_.back()));
  }
  return {};
}

Result<bool> UcxContext::reaches_gpus() {
  RONDO_TRY(validate(settings_));
  calls_ = RONDO_TRY(load_ucx());
  RONDO_TRY(make_context(0));
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const ucs_status_t status = calls_->context_query(contexts_.back(), &attributes);
  if (status != UCS_OK) return failed("asking which memory it knows", status);
  return (attributes.memory_types & UINT64_C(1) << UCS_MEMORY_TYPE_CUDA) != 0 && !uses_only_tcp();
}

bool UcxContext::uses_only_tcp() const {
  const char* const chosen = std::getenv("UCX_NET_DEVICES");
  return is_tcp_only(chosen != nullptr ? chosen
                                       : with_rdma(settings_.interface, settings_.all_rdma));
}

/// `port`: to listen at; 0: any.
Status UcxContext::configure(ucp_config_t* config, int port) {
  const auto set = [&](const char* variable, const char* name, const std::string& value) {
    if (user_has_set(variable)) return Status();
    const ucs_status_t status = calls_->config_modify(config, name, value.c_str());
    if (status == UCS_OK) return Status();
    return failed(std::string("setting ") + variable + " to " + value, status);
  };
  RONDO_TRY(set("UCX_TLS", "TLS", settings_.places.on_gpu ? kGpuTransports : kTransports));
  const std::string devices = with_rdma(settings_.interface, settings_.all_rdma);
  if (!devices.empty()) RONDO_TRY(set("UCX_NET_DEVICES", "NET_DEVICES", devices));
  // UCX 1.13 ignores the second name, later ones refuse the first.
  const auto set_tcp = [&](const std::string& name, const std::string& value) {
    if (user_has_set(("UCX_TCP_" + name).c_str())) return;
    calls_->config_modify(config, name.c_str(), value.c_str());
    calls_->config_modify(config, ("TCP_" + name).c_str(), value.c_str());
  };
  // Else a thread that connects to a host that is cut off hangs in connect() for two minutes.
  set_tcp("CONN_NB", "y");
  // An event can be that a peer died, after which UCX aborts at the next one that it got along with it
  // (assertion in tcp_iface.c).
  set_tcp("MAX_POLL", "1");
  if (port != 0) set_tcp("PORT_RANGE", std::to_string(port));
  // Over TCP a rendezvous saves no copy, and costs a round trip in which both must make progress.
  if (!uses_only_tcp()) return {};
  RONDO_TRY(set("UCX_RNDV_THRESH", "RNDV_THRESH", "inf"));
  // UCX cuts messages into pieces of this size, each with calls of its own; its 64 KiB are too few.
  set_tcp("RX_SEG_SIZE", "256k");
  // What UCX does not copy is finished only once the socket has it (UcxConnection::flushed). Twice the
  // threshold is far enough above it for every version's way to count headers.
  if (user_has_set("UCX_ZCOPY_THRESH")) return {};
  RONDO_TRY(set("UCX_ZCOPY_THRESH", "ZCOPY_THRESH", "8k"));
  uncopied_bytes_ = 16 << 10;
  return {};
}

Status UcxContext::make_context(int port) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = calls_->config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return failed("reading its configuration", status);
  ucp_context_h context = nullptr;
  const Status configured = configure(config, port);
  if (configured.ok()) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG;
    params.mt_workers_shared = 1;
    status = calls_->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  }
  calls_->config_release(config);
  RONDO_TRY(Status(configured));
  if (status == UCS_OK) {
    contexts_.push_back(context);
    return {};
  }
  const char* const devices = std::getenv("UCX_NET_DEVICES");
  return failed("opening network devices (" +
                    (devices != nullptr            ? std::string(devices)
                     : settings_.interface.empty() ? "all"
                                                   : settings_.interface) +
                    "; UCX_NET_DEVICES and UCX_TLS choose others)",
                status);
}

ucs_status_t UcxContext::create_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = calls_->worker_create(contexts_.back(), &params, &worker);
  if (status == UCS_OK) workers_.push_back(worker);
  return status;
}

Status UcxContext::make_worker() {
  const ucs_status_t status = create_worker();
  return status == UCS_OK ? Status() : failed("creating a worker", status);
}

// Where no port of a range is free, UCX tries them for ever; of a single port it says that it is taken.
// The port is a setting of the context: so this worker has one of its own.
Status UcxContext::make_worker_at_a_port() {
  const int ports = settings_.last_port - settings_.first_port + 1;
  const int start = static_cast<int>(std::random_device{}() % static_cast<unsigned>(ports));
  for (int i = 0; i < ports; ++i) {
    RONDO_TRY(make_context(settings_.first_port + (start + i) % ports));
    const ucs_status_t status = create_worker();
    if (status == UCS_OK) return {};
    calls_->cleanup(contexts_.back());
    contexts_.pop_back();
    if (status != UCS_ERR_BUSY) return failed("creating a worker", status);
  }
  return {Code::kResourceExhausted, "RONDO_PORTS is " + std::to_string(settings_.first_port) + "-" +
                                        std::to_string(settings_.last_port) +
                                        ", and none of them is free for UCX: give it more ports"};
}

Status UcxContext::append_address(ucp_worker_h worker) {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
  const ucs_status_t status = calls_->worker_query(worker, &attributes);
  if (status != UCS_OK) return failed("asking for a worker's address", status);
  const auto length = static_cast<uint32_t>(attributes.address_length);
  address_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  address_.append(reinterpret_cast<const char*>(attributes.address), length);
  calls_->worker_release_address(worker, attributes.address);
  return {};
}

Result<std::vector<std::string>> split_address(const PeerAddress& peer, const Settings& settings,
                                               const std::string& own) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, "the UCX address of " + peer.name + " " + why);
  };
  AddressHeader header{}, expected{};
  if (peer.address.size() < sizeof(header)) return refuse("is cut off");
  std::memcpy(&header, peer.address.data(), sizeof(header));
  std::memcpy(&expected, own.data(), sizeof(expected));
  if (header.magic != kAddressMagic) return refuse("is not one");
  if (header.major != expected.major || header.minor != expected.minor) {
    const auto version = [](const AddressHeader& of) {
      return std::to_string(of.major) + "." + std::to_string(of.minor);
    };
    return refuse("comes from UCX " + version(header) + ", this rank has UCX " + version(expected) +
                  ": install the same version on all hosts, or choose one by RONDO_UCX");
  }
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) {
    return refuse("comes from other settings: " + std::to_string(header.channels) +
                  " channels, depth " + std::to_string(header.depth) + ", slots of " +
                  std::to_string(header.slot_bytes) + " bytes");
  }
  std::vector<std::string> addresses;
  size_t at = sizeof(header);
  for (int channel = 0; channel < settings.channels; ++channel) {
    uint32_t length = 0;
    if (peer.address.size() - at < sizeof(length)) return refuse("is cut off");
    std::memcpy(&length, peer.address.data() + at, sizeof(length));
    at += sizeof(length);
    if (length == 0 || peer.address.size() - at < length) return refuse("is cut off");
    addresses.push_back(peer.address.substr(at, length));
    at += length;
  }
  if (at != peer.address.size()) return refuse("is too long");
  return addresses;
}

Result<bool> reaches_gpus(const Settings& settings) { return UcxContext(settings).reaches_gpus(); }

Result<std::string> version() {
  const Calls* const calls = RONDO_TRY(load_ucx());
  unsigned major = 0, minor = 0, release = 0;
  calls->get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

Result<std::unique_ptr<Opened>> open(const Settings& settings) {
  auto context = std::make_unique<UcxContext>(settings);
  RONDO_TRY(context->open());
  return std::unique_ptr<Opened>(std::move(context));
}

}  // namespace rondo::transport::ucx
