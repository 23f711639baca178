/* Another library with NCCL's SONAME, as a program finds one without the preload: it can nothing. */
#include "nccl/abi.h"

ncclResult_t ncclGetVersion(int* version) {
  *version = 1;
  return ncclSuccess;
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  (void)comms, (void)count, (void)devices;
  return ncclInternalError;
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream) {
  (void)in, (void)out, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return ncclInternalError;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  (void)comm;
  return ncclInternalError;
}
