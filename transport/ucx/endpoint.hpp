// A UCX endpoint: this rank's end of the connection to one peer on one channel, with the sends that
// UCX has not finished, and what is known about the peer's end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/ucx/calls.hpp"

namespace rondo::transport::ucx {

class UcxConnection;

/// What the connections of one channel share. Used by one thread at a time.
struct Channel {
  int number = 0;
  const Calls* calls = nullptr;
  ucp_worker_h worker = nullptr;
  Status failure;                      // the first; it stays
  std::vector<UcxConnection*> in_use;  // connections that exist
  bool closing = false;                // failures do not count any more
};

class Endpoint;

/// A buffer that UCX reads while `busy`.
struct Outbound {
  Endpoint* endpoint = nullptr;
  bool busy = false;
};

/// Thread rule: that of its channel.
class Endpoint {
 public:
  Endpoint(Channel& channel, std::string address, std::string peer)
      : channel_(channel), address_(std::move(address)), peer_(std::move(peer)) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Creates UCX's endpoint. UCX connects when it likes; a failure is the channel's.
  void open();
  bool usable() const { return handle_ != nullptr && !failed_; }
  /// From open() on, also when it is closed.
  bool is_opened() const { return opened_; }
  bool failed() const { return failed_; }

  /// Sends `bytes` bytes at `data`, which must stay until `outbound` is not busy. A failure is the
  /// channel's. REQUIRES: usable(), outbound not busy.
  /// `on_gpu`: perhaps in a GPU's memory, which UCX finds out.
  void send(const void* data, size_t bytes, uint64_t tag, Outbound* outbound, bool on_gpu = false);
  /// Sends that UCX has not finished. A finished one has left for the peer, or at least for UCX's
  /// buffer of the socket (UcxConnection::flushed).
  uint32_t unfinished() const { return unfinished_; }

  /// The peer has said that it closes its links: losing the connection is no failure from now on.
  void leave() { left_ = true; }
  bool left() const { return left_; }
  /// UCX says that the connection is lost.
  void lose(ucs_status_t status);
  /// The channel's failure, if it is the first: "<what> <peer>: <reason>".
  void fail(Code code, const char* what, const std::string& reason);

  /// Starts closing without asking the peer; is_closed() from some progress of the worker on.
  void close();
  bool is_closed();

 private:
  static void on_sent(void* request, ucs_status_t status, void* outbound);
  static void on_error(void* self, ucp_ep_h handle, ucs_status_t status);

  Channel& channel_;
  const std::string address_;
  const std::string peer_;
  ucp_ep_h handle_ = nullptr;
  void* closing_ = nullptr;  // UCX's request to close
  uint32_t unfinished_ = 0;
  bool opened_ = false;
  bool failed_ = false;
  bool left_ = false;
};

}  // namespace rondo::transport::ucx
