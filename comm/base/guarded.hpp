// Where exceptions end: none crosses rondo's interface. Its own code throws none; what it uses does,
// for want of memory or threads.
#pragma once

#include <exception>
#include <new>

#include "rondo/status.hpp"

namespace rondo::base {

/// Made when the program is loaded, since there is no memory for it later.
inline const Status kOutOfMemory{Code::kResourceExhausted, "out of memory"};

/// Of the exception that is being handled. Takes no memory if that is what there was not enough of.
inline Status caught() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const std::exception& error) {
    try {
      return {Code::kSystem, error.what()};
    } catch (...) {
      return kOutOfMemory;
    }
  } catch (...) {
    return kOutOfMemory;
  }
}

/// What `body` returns: a Status, or what can be made of one.
template <class Body>
auto guarded(const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return caught();
  }
}

}  // namespace rondo::base
