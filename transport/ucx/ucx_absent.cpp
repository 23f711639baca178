// Stands in for the other sources in a build without UCX's headers.
#include "transport/ucx/factory.hpp"

namespace rondo::transport::ucx {

Result<std::unique_ptr<Opened>> open(const Settings&) {
  return Status(Code::kUnavailable,
                "this rondo was built without UCX, which carries messages between hosts: build it "
                "where Debian's libucx-dev is installed, and install libucx0 where it runs");
}

Result<std::string> version() { return open({}).status(); }

Result<bool> reaches_gpus(const Settings&) { return open({}).status(); }

Result<std::unique_ptr<Transport>> connect(std::unique_ptr<Opened>, int, std::vector<PeerAddress>) {
  return open({}).status();
}

}  // namespace rondo::transport::ucx
