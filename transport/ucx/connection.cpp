#include "transport/ucx/connection.hpp"

#include <utility>

namespace rondo::transport::ucx {
namespace {

// What a socket takes at once, whatever the peer does: the kernel's least buffer of a connected
// socket.
constexpr size_t kKernelTakes = 16 << 10;

// A peer that uses the connection as well calls within this time, unless it gets no CPU.
constexpr std::chrono::milliseconds kCallPatience{1000};

// What no peer sends: a receive that is too short leaves it as it is.
constexpr ControlMessage kNoControl{.released = 0, .leaves = ~uint64_t{0}};

/// Of a receive of host memory, or of memory that UCX looks at.
ucp_request_param_t receiving(ucp_tag_recv_nbx_callback_t done, void* user_data,
                              bool on_gpu = false) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  if (!on_gpu) param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv = done;
  param.user_data = user_data;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return param;
}

}  // namespace

UcxConnection::UcxConnection(Channel& channel, const UcxContext& context, int own_rank,
                             int peer_rank, std::string address, std::string peer)
    : channel_(channel),
      own_rank_(own_rank),
      peer_rank_(peer_rank),
      reserve_(reserve_of(context.settings().depth)),
      uncopied_bytes_(context.uncopied_bytes()),
      places_(context.settings().places),
      endpoint_(channel, std::move(address), std::move(peer)),
      sender_(*this, context.settings().depth, context.settings().slot_bytes),
      receiver_(*this, context.settings().depth, context.settings().slot_bytes) {
  control_outbound_.endpoint = &endpoint_;
}

void UcxConnection::open() {
  in_use_ = true;
  channel_.in_use.push_back(this);
  opened_ = std::chrono::steady_clock::now();
  const auto first = [&](bool inbound) {
    return places_.first ? places_.first(channel_.number, peer_rank_, inbound) : nullptr;
  };
  if (!sender_.open(&endpoint_, places_, first(false)) || !receiver_.open(places_, first(true))) {
    endpoint_.fail(Code::kResourceExhausted, "no memory for messages to and from",
                   "fewer or smaller slots would need less");
    return;
  }
  ready_ = true;
  post_control();
}

void UcxConnection::connect_if_due() {
  const bool calls = own_rank_ < peer_rank_;
  const bool is_due =
      calls || called_ || std::chrono::steady_clock::now() - opened_ > kCallPatience;
  if (!ready_ || !is_due || endpoint_.left()) return;
  connect();
  if (!usable()) return;
  if (calls) send_control(false);
  sender_.send_waiting();
}

void UcxConnection::connect() {
  // Where the peer's connection was lost, UCX takes it away in the progress after the one that found it,
  // and aborts if it is asked for that peer in between (assertion in tcp_ep.c, 1.13).
  for (int i = 0; i < 2; ++i) channel_.calls->worker_progress(channel_.worker);
  endpoint_.open();
}

ucs_status_ptr_t UcxConnection::receive(WireKind kind, std::byte* message, size_t bytes,
                                        uint32_t slot, ucp_tag_recv_nbx_callback_t done,
                                        void* user_data) {
  const ucp_request_param_t param = receiving(done, user_data, kind == WireKind::kPayload);
  return channel_.calls->tag_recv_nbx(channel_.worker, message, bytes,
                                      tag_of(kind, peer_rank_, slot), ~uint64_t{0}, &param);
}

void UcxConnection::send_data(const std::byte* message, size_t bytes, uint32_t slot,
                              Outbound* outbound) {
  followed_ = bytes >= uncopied_bytes_;
  endpoint_.send(message, bytes, tag_of(WireKind::kData, own_rank_, slot), outbound);
}

void UcxConnection::send_payload(const std::byte* payload, size_t bytes, uint32_t slot,
                                 Outbound* outbound) {
  endpoint_.send(payload, bytes, tag_of(WireKind::kPayload, own_rank_, slot), outbound, true);
}

void UcxConnection::send_control(bool leaves) {
  if (control_outbound_.busy) return;
  control_out_ = {.released = tell(), .leaves = leaves ? 1U : 0U};
  followed_ = false;
  endpoint_.send(&control_out_, sizeof(control_out_), tag_of(WireKind::kControl, own_rank_, 0),
                 &control_outbound_);
}

bool UcxConnection::flushed() {
  if (in_use_ && !use()) return true;
  // At the end only those of an operation that has failed still wait, or for whose reader its writer
  // has waited long enough.
  if (sender_.has_waiting()) return endpoint_.left() || channel_.closing;
  if (!usable()) return true;
  if (owes_only_credit()) return true;
  if (owes_much()) {
    send_control(false);
    if (owes_much()) return false;
  }
  if (endpoint_.unfinished() > 0) return false;
  if (sender_.outstanding_bytes() <= kKernelTakes || followed_) return true;
  send_control(false);
  followed_ = true;
  return endpoint_.unfinished() == 0;
}

// The first message of a connection leaves when the peer makes progress, and the peer may have done its
// part and wait for this rank elsewhere. The credit goes with the next use of the link.
bool UcxConnection::owes_only_credit() const {
  return control_outbound_.busy && endpoint_.unfinished() == 1 && sender_.outstanding_bytes() == 0;
}

bool UcxConnection::can_end() {
  return flushed() && !control_outbound_.busy &&
         (!usable() || sender_.outstanding_bytes() <= kKernelTakes);
}

void UcxConnection::attend() {
  use();
  if (owes_much() && usable()) send_control(false);
}

uint64_t UcxConnection::tell() { return told_ = receiver_.released(); }

void UcxConnection::credit(uint64_t released) {
  if (sender_.credit(released)) return;
  endpoint_.fail(Code::kSystem, "nonsense from",
                 "it has released " + std::to_string(released) + " messages, more than it got");
}

void UcxConnection::post_control() {
  while (true) {
    control_in_ = kNoControl;
    const ucp_request_param_t param = receiving(&UcxConnection::on_control, this);
    const ucs_status_ptr_t request = channel_.calls->tag_recv_nbx(
        channel_.worker, &control_in_, sizeof(control_in_),
        tag_of(WireKind::kControl, peer_rank_, 0), ~uint64_t{0}, &param);
    control_request_ = UCS_PTR_IS_PTR(request) ? request : nullptr;
    if (control_request_ != nullptr) return;
    if (!take_control(UCS_PTR_STATUS(request))) return;
  }
}

void UcxConnection::on_control(void* request, ucs_status_t status,
                               const ucp_tag_recv_info_t* /*info*/, void* user_data) {
  auto& self = *static_cast<UcxConnection*>(user_data);
  self.control_request_ = nullptr;
  self.channel_.calls->request_free(request);
  if (self.take_control(status)) self.post_control();
}

/// Whether another control message may follow.
bool UcxConnection::take_control(ucs_status_t status) {
  if (status == UCS_ERR_CANCELED) return false;
  if (status != UCS_OK || control_in_.leaves > 1) {
    endpoint_.fail(Code::kSystem, "nonsense from", "a control message that is not one");
    return false;
  }
  called_ = true;
  credit(control_in_.released);
  if (control_in_.leaves == 1) endpoint_.leave();
  return control_in_.leaves == 0;
}

bool UcxConnection::has_left() {
  if (!endpoint_.left()) return false;
  endpoint_.fail(Code::kPeerDied, "no more messages to or from", "it has closed its links");
  return true;
}

void UcxConnection::lost_message(ucs_status_t status) {
  if (status != UCS_ERR_CANCELED && !endpoint_.left()) endpoint_.lose(status);
}

void UcxConnection::say_goodbye() {
  if (usable()) send_control(true);
}

void UcxConnection::cancel() {
  receiver_.cancel();
  if (control_request_ != nullptr) cancel_request(control_request_);
}

}  // namespace rondo::transport::ucx
