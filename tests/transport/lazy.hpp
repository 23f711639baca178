// The lazy transport: a decorator that is as unhelpful as a wire may be. It refuses at random, lets
// slots leave, arrive and become free in progress() only, and fails links on command.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/link.hpp"

namespace rondo::transport::test {

/// `inner` as a wire: links only. `channels`: of all of them. Its refusals depend on the rank, the
/// link and the calls so far alone.
std::unique_ptr<Transport> lazy(std::unique_ptr<Transport> inner, int rank, int ranks,
                                int channels);

/// The same for the links between ranks of which one is odd and one is even; the others stay as
/// they are, as within a host, and take references.
std::unique_ptr<Transport> lazy_between(std::unique_ptr<Transport> inner, int rank, int ranks,
                                        int channels);

/// From now on the links of `rank`, in this process, to and from `peer` fail: they move no more,
/// and progress() says so. In every lazy transport; for the life of the process.
void fail_links(int rank, int peer);

}  // namespace rondo::transport::test
