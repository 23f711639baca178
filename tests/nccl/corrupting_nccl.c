/* Preloaded before the library: every all-reduce outside a group has one wrong bit, in its first element, so that a
 * program which verifies has something to find. And an ncclGetLastError that says nothing, as nccl-tests have one. */
#include "nccl/abi.h"

ncclResult_t pncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream);

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  const ncclResult_t result = pncclAllReduce(in, out, count, type, op, comm, stream);
  if (result == ncclSuccess && count != 0) *(unsigned char*)out ^= 4;
  return result;
}

const char* ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return "";
}
