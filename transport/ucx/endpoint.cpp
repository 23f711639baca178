#include "transport/ucx/endpoint.hpp"

#include <utility>

namespace rondo::transport::ucx {

void Endpoint::open() {
  opened_ = true;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address_.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Endpoint::on_error;
  params.err_handler.arg = this;
  const ucs_status_t status = channel_.calls->ep_create(channel_.worker, &params, &handle_);
  if (status == UCS_OK) return;
  handle_ = nullptr;
  failed_ = true;
  fail(Code::kPeerDied, "cannot connect to", channel_.calls->status_string(status));
}

void Endpoint::send(const void* data, size_t bytes, uint64_t tag, Outbound* outbound, bool on_gpu) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  if (!on_gpu) param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = &Endpoint::on_sent;
  param.user_data = outbound;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = channel_.calls->tag_send_nbx(handle_, data, bytes, tag, &param);
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) return lose(UCS_PTR_STATUS(request));
  outbound->busy = true;
  ++unfinished_;
}

void Endpoint::on_sent(void* request, ucs_status_t status, void* user_data) {
  auto* const outbound = static_cast<Outbound*>(user_data);
  Endpoint& self = *outbound->endpoint;
  outbound->busy = false;
  --self.unfinished_;
  self.channel_.calls->request_free(request);
  if (status != UCS_OK) self.lose(status);
}

void Endpoint::on_error(void* self, ucp_ep_h /*handle*/, ucs_status_t status) {
  static_cast<Endpoint*>(self)->lose(status);
}

void Endpoint::lose(ucs_status_t status) {
  failed_ = true;
  if (!left_) {
    fail(Code::kPeerDied, "lost the connection to", channel_.calls->status_string(status));
  }
}

void Endpoint::fail(Code code, const char* what, const std::string& reason) {
  if (channel_.closing || !channel_.failure.ok()) return;
  channel_.failure = Status(code, std::string(what) + " " + peer_ + ": " + reason);
}

void Endpoint::close() {
  if (handle_ == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  closing_ = channel_.calls->ep_close_nbx(std::exchange(handle_, nullptr), &param);
  if (UCS_PTR_IS_ERR(closing_)) closing_ = nullptr;  // there is nothing left to close
}

bool Endpoint::is_closed() {
  if (closing_ == nullptr) return handle_ == nullptr;
  if (channel_.calls->request_check_status(closing_) == UCS_INPROGRESS) return false;
  channel_.calls->request_free(std::exchange(closing_, nullptr));
  return true;
}

}  // namespace rondo::transport::ucx
