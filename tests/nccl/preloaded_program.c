/* A program that was linked with another libnccl.so.2. Prints the version, and a sum if there is one. */
#include <stdio.h>

#include "nccl/abi.h"

int main(void) {
  int version = 0, in = 5, sum = 0;
  ncclComm_t comm = NULL;
  if (ncclGetVersion(&version) != ncclSuccess) return 1;
  printf("version %d", version);
  if (ncclCommInitAll(&comm, 1, NULL) == ncclSuccess) {
    if (ncclAllReduce(&in, &sum, 1, ncclInt32, ncclSum, comm, NULL) != ncclSuccess) return 1;
    if (ncclCommDestroy(comm) != ncclSuccess) return 1;
    printf(", sum %d", sum);
  }
  puts("");
  return 0;
}
