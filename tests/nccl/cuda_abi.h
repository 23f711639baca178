/* CUDA's runtime API, version 13, as far as nccl-tests call it: names, numbers and layouts, in declarations of
 * rondo's own, for the stand-in and for programs that are built where no CUDA is. C99. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorNotSupported = 801
} cudaError_t;

typedef struct CUstream_st* cudaStream_t; /* null: the default stream */
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUkern_st* cudaKernel_t;
typedef struct {
  unsigned x, y, z;
} cudaDim3; /* dim3 */

enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1 };
enum { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };

/* The first 600 of its 1,008 bytes. */
typedef struct {
  char name[256];
  char ids[32];
  size_t totalGlobalMem;
  char rest[304];
} cudaDeviceProp;

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMemset(void* pointer, int byte, size_t bytes);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind,
                            cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaLaunchKernel(const void* kernel, cudaDim3 grid, cudaDim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* What nvcc's host code calls: once per file and kernel at the start, and for kernel<<<...>>>(). */
void** __cudaRegisterFatBinary(const void* binary);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name,
                            int thread_limit, void* thread, void* block, cudaDim3* block_dim,
                            cudaDim3* grid_dim, int* warp_size);
unsigned __cudaPushCallConfiguration(cudaDim3 grid, cudaDim3 block, size_t shared_bytes,
                                     cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(cudaDim3* grid, cudaDim3* block, size_t* shared_bytes,
                                       cudaStream_t* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* kernel);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, cudaDim3 grid, cudaDim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
