// The two links between this rank and one peer on one channel. They share an endpoint, and each
// carries the credits of the other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "transport/link.hpp"
#include "transport/ucx/context.hpp"
#include "transport/ucx/endpoint.hpp"
#include "transport/ucx/factory.hpp"
#include "transport/ucx/wire.hpp"

namespace rondo::transport::ucx {

/// What a message of `bytes` may take of a socket's buffer.
constexpr size_t socket_cost(size_t bytes) { return bytes + (1 << 10); }

/// The memory of a link's messages. A message lies so that its payload is aligned to 64 bytes. Pages
/// that no message has touched cost nothing.
class MessageSlots {
 public:
  /// False: no memory.
  bool allocate(uint32_t count, size_t slot_bytes);
  /// The caller's instead.
  void use(const SlotPlaces& places, std::byte* first, uint32_t count) {
    first_ = first;
    stride_ = places.stride;
    if (places.on_gpu) headers_.resize(count);
  }
  /// Whether headers are messages of their own.
  bool is_apart() const { return !headers_.empty(); }
  /// Its header; the payload follows, unless it is apart.
  std::byte* message(size_t slot) {
    return is_apart() ? reinterpret_cast<std::byte*>(&headers_[slot])
                      : payload(slot) - sizeof(DataHeader);
  }
  std::byte* payload(size_t slot) const { return first_ + slot * stride_; }

 private:
  static constexpr size_t kAlignment = 64;
  struct FreeSlots {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, FreeSlots> memory_;
  std::byte* first_ = nullptr;  // payload
  std::vector<DataHeader> headers_;
  size_t stride_ = 0;
};

/// From this rank to the peer.
class UcxSender final : public Sender {
 public:
  UcxSender(UcxConnection& connection, uint32_t depth, size_t slot_bytes)
      : connection_(connection), depth_(depth), count_(slots_of(depth)), slot_bytes_(slot_bytes) {}

  std::byte* try_acquire(size_t bytes) override;
  bool try_publish(size_t bytes, uint64_t word) override;
  uint64_t reusable() override;
  bool drained() override { return released_ == published_; }
  bool flushed() override;
  size_t capacity() const override { return slot_bytes_; }
  uint32_t depth() const override { return depth_; }

  /// `first`: of the caller's slots, or null.
  bool open(Endpoint* endpoint, const SlotPlaces& places, std::byte* first);
  /// The peer has released `released` messages; false: it cannot have.
  bool credit(uint64_t released);
  /// Hands over what was published before the endpoint was open.
  void send_waiting();
  bool has_waiting() const { return sent_ < published_; }
  /// What the unreleased messages may take of a socket's buffers.
  size_t outstanding_bytes() const { return outstanding_; }

 private:
  struct OutboundSlot {
    Outbound outbound, payload;  // the second if the header is apart
    size_t payload_bytes = 0;    // likewise
    bool is_busy() const { return outbound.busy || payload.busy; }
    size_t message_bytes = 0;
    size_t cost = 0;
  };
  UcxConnection& connection_;
  const uint32_t depth_;
  const uint32_t count_;  // of slots
  const size_t slot_bytes_;
  MessageSlots memory_;
  std::vector<OutboundSlot> slots_;
  uint64_t published_ = 0;
  uint64_t sent_ = 0;      // of those, handed to the endpoint
  uint64_t released_ = 0;  // as far as this rank knows
  uint64_t reusable_ = 0;  // of these, also finished by UCX
  size_t outstanding_ = 0;
};

/// From the peer to this rank. Each slot has a receive posted, or holds a message.
class UcxReceiver final : public Receiver {
 public:
  UcxReceiver(UcxConnection& connection, uint32_t depth, size_t slot_bytes)
      : connection_(connection), count_(slots_of(depth)), slot_bytes_(slot_bytes) {}

  bool try_peek(Delivery* delivery) override { return try_peek_ahead(0, delivery); }
  bool try_peek_ahead(uint64_t ahead, Delivery* delivery) override;
  void release() override;
  bool flushed() override;

  bool open(const SlotPlaces& places, std::byte* first);
  uint64_t released() const { return released_; }
  void cancel();

 private:
  struct InboundSlot {
    UcxReceiver* receiver = nullptr;
    void* request = nullptr;  // the posted receive
    // Where headers are apart, the payload's. A message without one leaves its receive posted.
    void* payload_request = nullptr;
    bool payload_posted = false, payload_arrived = false;
    bool arrived = false;
    bool sound = false;
    size_t bytes = 0;
    uint64_t word = 0;
  };
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* slot);
  static void on_payload(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* slot);
  void post_payload(InboundSlot& slot);
  void arrive_payload(InboundSlot& slot, ucs_status_t status);
  size_t index_of(const InboundSlot& slot) const {
    return static_cast<size_t>(&slot - slots_.data());
  }
  void post(InboundSlot& slot);
  void arrive(InboundSlot& slot, ucs_status_t status);
  uint64_t sequence_of(size_t index) const;

  UcxConnection& connection_;
  const uint32_t count_;  // of slots
  const size_t slot_bytes_;
  MessageSlots memory_;
  std::vector<InboundSlot> slots_;
  uint64_t released_ = 0;  // the next message's sequence number
};

/// Exists for every peer with an address; costs memory and a connection from its first use on.
/// Thread rule: that of its channel.
class UcxConnection {
 public:
  UcxConnection(Channel& channel, const UcxContext& context, int own_rank, int peer_rank,
                std::string address, std::string peer);
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  UcxSender& sender() { return sender_; }
  UcxReceiver& receiver() { return receiver_; }

  /// Opens both links on first use; whether the sender takes messages.
  bool use() {
    if (!in_use_) open();
    if (!endpoint_.is_opened()) connect_if_due();
    return ready_ && !endpoint_.failed();
  }

  /// See link.hpp. What has been sent arrives without this rank if UCX has finished sending it, and
  /// has no rest of it in its own buffer, which happens when the socket is full. There cannot be
  /// one if little is on its way, for the kernel takes that much; or if the last message is so long
  /// that UCX does not copy it; or if UCX has finished a message sent later, because it keeps one
  /// rest at most. So where none of that holds, a control message of no other use follows.
  /// (ucp_ep_flush waits for an answer of the peer's UCX over TCP, which an idle peer does not give.)
  bool flushed();
  /// After each progress of the worker: connects, if that is due, and sends the credit if more than the
  /// reserve is owed.
  void attend();

  /// Whether the kernel can deliver without this process what the peer has not read.
  bool can_end();
  void say_goodbye();
  void cancel();
  void close() { endpoint_.close(); }
  bool is_closed() { return endpoint_.is_closed(); }

 private:
  friend class UcxSender;
  friend class UcxReceiver;

  void open();
  /// Of two ranks the lower one connects on first use, and says so; the other connects after that, or
  /// when it has waited long: UCX 1.13 may abort where both do so at one moment (assertion in tcp_cm.c).
  void connect_if_due();
  void connect();
  /// All that UCX has not finished is a credit.
  bool owes_only_credit() const;
  bool usable() const { return ready_ && endpoint_.usable() && !endpoint_.left(); }
  void send_data(const std::byte* message, size_t bytes, uint32_t slot, Outbound* outbound);
  void send_payload(const std::byte* payload, size_t bytes, uint32_t slot, Outbound* outbound);
  /// The receive of a message, which only the peer's message of that kind in `slot` matches.
  ucs_status_ptr_t receive(WireKind kind, std::byte* message, size_t bytes, uint32_t slot,
                           ucp_tag_recv_nbx_callback_t done, void* user_data);
  void free_request(void* request) { channel_.calls->request_free(request); }
  void cancel_request(void* request) { channel_.calls->request_cancel(channel_.worker, request); }
  void lost_message(ucs_status_t status);
  /// Whether the peer has closed its links, which is a failure once this rank needs them.
  bool has_left();

  void send_control(bool leaves);
  bool owes_much() const { return receiver_.released() - told_ > reserve_; }
  uint64_t tell();
  void credit(uint64_t released);
  void post_control();
  static void on_control(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* connection);
  bool take_control(ucs_status_t status);

  Channel& channel_;
  const int own_rank_;
  const int peer_rank_;
  const uint32_t reserve_;
  const size_t uncopied_bytes_;
  const SlotPlaces& places_;
  Endpoint endpoint_;
  UcxSender sender_;
  UcxReceiver receiver_;
  ControlMessage control_out_{}, control_in_{};
  Outbound control_outbound_;
  void* control_request_ = nullptr;
  uint64_t told_ = 0;  // releases that the peer has been sent
  bool in_use_ = false;
  bool ready_ = false;   // has its memory and receives
  bool called_ = false;  // has a message of the peer's
  std::chrono::steady_clock::time_point opened_;
  bool followed_ = false;  // UCX holds nothing once it has finished the last message
};

}  // namespace rondo::transport::ucx
