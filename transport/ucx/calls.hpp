// The C functions of UCX that rondo calls, found in the library when it is loaded. UCX installs
// signal handlers in its constructor, and must not be required to start a program: so nothing links
// it.
#pragma once

#include <ucp/api/ucp.h>

#include "rondo/status.hpp"

namespace rondo::transport::ucx {

/// Each is documented in ucp/api/ucp.h under ucp_NAME (ucs_NAME for the last).
struct Calls {
  decltype(&::ucp_get_version) get_version;
  decltype(&::ucp_init_version) init_version;
  decltype(&::ucp_cleanup) cleanup;
  decltype(&::ucp_context_query) context_query;
  decltype(&::ucp_config_read) config_read;
  decltype(&::ucp_config_modify) config_modify;
  decltype(&::ucp_config_release) config_release;
  decltype(&::ucp_worker_create) worker_create;
  decltype(&::ucp_worker_destroy) worker_destroy;
  decltype(&::ucp_worker_query) worker_query;
  decltype(&::ucp_worker_release_address) worker_release_address;
  decltype(&::ucp_worker_progress) worker_progress;
  decltype(&::ucp_ep_create) ep_create;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx;
  decltype(&::ucp_tag_send_nbx) tag_send_nbx;
  decltype(&::ucp_tag_recv_nbx) tag_recv_nbx;
  decltype(&::ucp_request_cancel) request_cancel;
  decltype(&::ucp_request_free) request_free;
  decltype(&::ucp_request_check_status) request_check_status;
  decltype(&::ucs_status_string) status_string;
};

/// Loads UCX: the library of RONDO_UCX, or the system's. Once per process, which keeps it; a failure
/// is tried again. Thread-safe. Error: kUnavailable.
Result<const Calls*> load_ucx();

}  // namespace rondo::transport::ucx
