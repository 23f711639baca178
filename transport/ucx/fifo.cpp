// The two directions of a connection: slots, sequence numbers and credits.
#include <cstring>

#include "transport/ucx/connection.hpp"

namespace rondo::transport::ucx {
bool MessageSlots::allocate(uint32_t count, size_t slot_bytes) {
  stride_ = kAlignment + (slot_bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, count * stride_)));
  first_ = memory_.get() + kAlignment;
  return memory_ != nullptr;
}

bool UcxSender::open(Endpoint* endpoint, const SlotPlaces& places, std::byte* first) {
  slots_.resize(count_);
  for (OutboundSlot& slot : slots_) slot.outbound.endpoint = slot.payload.endpoint = endpoint;
  if (first == nullptr) return memory_.allocate(count_, slot_bytes_);
  memory_.use(places, first, count_);
  return true;
}

std::byte* UcxSender::try_acquire(size_t bytes) {
  RONDO_CHECK(bytes <= slot_bytes_, "%zu bytes for a slot of %zu", bytes, slot_bytes_);
  if (connection_.has_left() || !connection_.use()) return nullptr;
  // A released slot may still be busy: the peer has the message before UCX knows that here.
  const size_t index = published_ % count_;
  const bool is_full = published_ - released_ >= count_ || slots_[index].is_busy();
  return is_full ? nullptr : memory_.payload(index);
}

bool UcxSender::try_publish(size_t bytes, uint64_t word) {
  const size_t index = published_ % count_;
  OutboundSlot& slot = slots_[index];
  std::byte* const message = memory_.message(index);
  const DataHeader header{
      .word = word, .sequence = published_, .released = connection_.tell(), .bytes = bytes};
  std::memcpy(message, &header, sizeof(header));
  ++published_;
  slot.payload_bytes = memory_.is_apart() ? bytes : 0;
  slot.message_bytes = sizeof(header) + bytes - slot.payload_bytes;
  slot.cost = socket_cost(bytes);
  outstanding_ += slot.cost;
  send_waiting();
  return true;
}

void UcxSender::send_waiting() {
  for (; has_waiting() && connection_.usable(); ++sent_) {
    const size_t index = sent_ % count_;
    OutboundSlot& slot = slots_[index];
    if (slot.payload_bytes > 0) {
      connection_.send_payload(memory_.payload(index), slot.payload_bytes,
                               static_cast<uint32_t>(index), &slot.payload);
      if (!connection_.usable()) return;
    }
    connection_.send_data(memory_.message(index), slot.message_bytes, static_cast<uint32_t>(index),
                          &slot.outbound);
  }
}

uint64_t UcxSender::reusable() {
  while (reusable_ < released_ && !slots_[reusable_ % count_].is_busy()) ++reusable_;
  return reusable_;
}

bool UcxSender::flushed() { return connection_.flushed(); }

bool UcxSender::credit(uint64_t released) {
  if (released > published_) return false;
  for (; released_ < released; ++released_) outstanding_ -= slots_[released_ % count_].cost;
  return true;
}

bool UcxReceiver::open(const SlotPlaces& places, std::byte* first) {
  if (first != nullptr) {
    memory_.use(places, first, count_);
  } else if (!memory_.allocate(count_, slot_bytes_)) {
    return false;
  }
  slots_.resize(count_);
  for (InboundSlot& slot : slots_) {
    slot.receiver = this;
    post(slot);
  }
  return true;
}

void UcxReceiver::post(InboundSlot& slot) {
  slot.arrived = false;
  const size_t index = index_of(slot);
  // What is not written by a message makes no sense as one.
  const DataHeader none{.word = 0, .sequence = ~uint64_t{0}, .released = 0, .bytes = 0};
  std::memcpy(memory_.message(index), &none, sizeof(none));
  const ucs_status_ptr_t request =
      connection_.receive(WireKind::kData, memory_.message(index),
                          sizeof(DataHeader) + (memory_.is_apart() ? 0 : slot_bytes_),
                          static_cast<uint32_t>(index), &UcxReceiver::on_received, &slot);
  slot.request = UCS_PTR_IS_PTR(request) ? request : nullptr;
  if (slot.request == nullptr) arrive(slot, UCS_PTR_STATUS(request));
  if (memory_.is_apart() && !slot.payload_posted) post_payload(slot);
}

void UcxReceiver::post_payload(InboundSlot& slot) {
  slot.payload_posted = true;
  slot.payload_arrived = false;
  const size_t index = index_of(slot);
  const ucs_status_ptr_t request =
      connection_.receive(WireKind::kPayload, memory_.payload(index), slot_bytes_,
                          static_cast<uint32_t>(index), &UcxReceiver::on_payload, &slot);
  slot.payload_request = UCS_PTR_IS_PTR(request) ? request : nullptr;
  if (slot.payload_request == nullptr) arrive_payload(slot, UCS_PTR_STATUS(request));
}

void UcxReceiver::on_payload(void* request, ucs_status_t status,
                             const ucp_tag_recv_info_t* /*info*/, void* user_data) {
  InboundSlot& slot = *static_cast<InboundSlot*>(user_data);
  slot.payload_request = nullptr;
  slot.receiver->connection_.free_request(request);
  slot.receiver->arrive_payload(slot, status);
}

/// How long it is says its header.
void UcxReceiver::arrive_payload(InboundSlot& slot, ucs_status_t status) {
  if (status != UCS_OK) return connection_.lost_message(status);
  slot.payload_arrived = true;
}

void UcxReceiver::on_received(void* request, ucs_status_t status,
                              const ucp_tag_recv_info_t* /*info*/, void* user_data) {
  InboundSlot& slot = *static_cast<InboundSlot*>(user_data);
  slot.request = nullptr;
  slot.receiver->connection_.free_request(request);
  slot.receiver->arrive(slot, status);
}

/// A message that is too long or too short, or not the one that this slot waits for, has arrived,
/// but is not sound. One that got lost with the connection has not arrived.
void UcxReceiver::arrive(InboundSlot& slot, ucs_status_t status) {
  if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) {
    return connection_.lost_message(status);
  }
  DataHeader header{};
  const size_t index = index_of(slot);
  if (status == UCS_OK) std::memcpy(&header, memory_.message(index), sizeof(header));
  slot.sound =
      status == UCS_OK && header.sequence == sequence_of(index) && header.bytes <= slot_bytes_;
  slot.arrived = true;
  slot.bytes = slot.sound ? header.bytes : 0;
  slot.word = header.word;
  if (!slot.sound) return;
  connection_.called_ = true;
  connection_.credit(header.released);
}

/// The number of the one message that the slot can wait for.
uint64_t UcxReceiver::sequence_of(size_t index) const {
  const size_t next = released_ % count_;
  return released_ + (index >= next ? index - next : index + count_ - next);
}

bool UcxReceiver::try_peek_ahead(uint64_t ahead, Delivery* delivery) {
  connection_.use();
  if (slots_.empty() || ahead >= count_) return false;
  const size_t index = (released_ + ahead) % count_;
  const InboundSlot& slot = slots_[index];
  // What has arrived counts, also where the peer has left since. That nothing more will come is for
  // the communicator to say, which knows whether this rank needs it.
  if (!slot.arrived) return false;
  if (memory_.is_apart() && slot.bytes > 0 && !slot.payload_arrived) return false;
  *delivery = {
      .data = slot.sound ? memory_.payload(index) : nullptr, .bytes = slot.bytes, .tag = slot.word};
  return true;
}

void UcxReceiver::release() {
  InboundSlot& slot = slots_[released_ % count_];
  ++released_;
  slot.arrived = false;
  if (slot.bytes > 0) slot.payload_posted = false;
  if (!connection_.use()) return;
  post(slot);
  connection_.attend();
}

bool UcxReceiver::flushed() { return connection_.flushed(); }

void UcxReceiver::cancel() {
  for (const InboundSlot& slot : slots_) {
    if (slot.request != nullptr) connection_.cancel_request(slot.request);
    if (slot.payload_request != nullptr) connection_.cancel_request(slot.payload_request);
  }
}

}  // namespace rondo::transport::ucx
