/* NCCL's C ABI, version 2.32.3, as far as a library that takes NCCL's place has to know it: names, numbers
 * and layouts, in declarations of rondo's own. Programs are compiled against NVIDIA's nccl.h, not this. C99.
 *
 * Refuses to be complete: structs that only unsupported calls take (the device API's) are not described. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum { NCCL_VERSION_CODE = 23203 }; /* 10000 * major + 100 * minor + patch, from 2.9 on */
enum { NCCL_UNIQUE_ID_BYTES = 128 };
enum { NCCL_CONFIG_UNDEF_INT = INT_MIN };
enum { NCCL_SPLIT_NOCOLOR = -1 };
enum { NCCL_SHRINK_DEFAULT = 0, NCCL_SHRINK_ABORT = 1 };
static const unsigned int kNcclMagic = 0xcafebeef;           /* of configs and properties */
static const unsigned int kNcclSimulationMagic = 0x74685283; /* of ncclSimInfo_t */

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct ncclParamHandle* ncclParamHandle_t;
typedef void* ncclStream_t; /* a cudaStream_t */
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8
} ncclResult_t;

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* operators made at run time have numbers from here on */
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef enum {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

/* Structs that grow at their end: the caller's header sets size, magic and version. */
typedef struct {
  size_t size;
  unsigned int magic, version;
  int blocking;                         /* 2.14 */
  int cgaClusterSize, minCTAs, maxCTAs; /* 2.17 */
  const char* netName;
  int splitShare;   /* 2.18 */
  int trafficClass; /* 2.25 */
  const char* commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs;                         /* 2.27 */
  int nChannelsPerNetPeer, nvlinkCentricSched;                                 /* 2.28 */
  int graphUsageMode, numRmaCtx;                                               /* 2.29 */
  int maxP2pPeers, graphStreamOrdering;                                        /* 2.30 */
  int launchOrderImplicit, numRmaSig, rmaEagerInit, hostCftMode, nvlsHostMode; /* 2.31, 2.32 */
} ncclConfig_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  void* ext; /* options of other vendors */
  int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection, CTAPolicy;
  uint64_t userProfilerTag;
  void* launchCompletionEvent; /* a cudaEvent_t */
} ncclCollConfig_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  int mode; /* 0: none, 1: with a pre-shared key */
  const char* psk;
} ncclEncryptionConfig_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  int ginType, nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
  uint64_t commHash;
  int ginMinStride, ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
  bool cftSupport, cftMulticastSupport, cftCountedSupport;
} ncclCommProperties_t;

/* Ranks `rank + k * stride` of a communicator. */
typedef struct {
  int nRanks, rank, stride;
} ncclTeam_t;

/* ---- versions, errors, memory */

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t ncclMemFree(void* ptr);

/* ---- communicators */

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count,
                                      ncclUniqueId* ids, ncclConfig_t* config);
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* left,
                            ncclConfig_t* config, int flags);
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank,
                          ncclComm_t* grown, ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config);

/* ---- registration */

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t size, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size,
                                    ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer);

/* ---- operators, collectives, messages, groups */

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       ncclStream_t stream);
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclScatter(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      ncclStream_t stream);

ncclResult_t ncclAllReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t ncclReduceScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, ncclStream_t stream,
                                     const ncclCollConfig_t* config);
ncclResult_t ncclReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                              ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream,
                              const ncclCollConfig_t* config);
ncclResult_t ncclBroadcastConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                 int root, ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t ncclAllGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t ncclAlltoAllConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                                ncclComm_t comm, ncclStream_t stream,
                                const ncclCollConfig_t* config);
ncclResult_t ncclGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                              int root, ncclComm_t comm, ncclStream_t stream,
                              const ncclCollConfig_t* config);
ncclResult_t ncclScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type,
                               int root, ncclComm_t comm, ncclStream_t stream,
                               const ncclCollConfig_t* config);

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* information);

/* ---- teams of ranks */

ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t ncclTeamCft(ncclComm_t comm, int mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/* ---- not supported: one-sided messages, the device API, parameters */

ncclResult_t ncclPutSignal(const void* buffer, size_t count, ncclDataType_t type, int peer,
                           ncclWindow_t window, size_t offset, int signal, int context,
                           unsigned int flags, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                        ncclStream_t stream);
ncclResult_t ncclWaitSignal(int count, void* descriptors, ncclComm_t comm, ncclStream_t stream);

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void* requirements, void* device_comm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void* device_comm);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int rank, void** pointer);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** pointer);
/* `handle` stands for a struct of one pointer. */
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, void* handle,
                                          void** pointer);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** pointer);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, uint32_t* id,
                                         size_t* le_offset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, ncclTeam_t team,
                                    uint32_t* id, size_t* le_offset);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, uint32_t* id,
                                     size_t* le_offset);
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int count, void* handle,
                                             void* requirement);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int count,
                                             void* handle, void* requirement);
ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int size_log2, void* handle,
                                            void* requirement);
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int blocks, int size_log2,
                                              void* handle, void* requirement);
ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, void* handle, void* requirement);
int ncclLLA2ACalcSlots(int elements, int element_bytes);

ncclResult_t ncclParamBind(ncclParamHandle_t* handle, const char* key);
ncclResult_t ncclParamGetI8(ncclParamHandle_t handle, int8_t* value);
ncclResult_t ncclParamGetI16(ncclParamHandle_t handle, int16_t* value);
ncclResult_t ncclParamGetI32(ncclParamHandle_t handle, int32_t* value);
ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, int64_t* value);
ncclResult_t ncclParamGetU8(ncclParamHandle_t handle, uint8_t* value);
ncclResult_t ncclParamGetU16(ncclParamHandle_t handle, uint16_t* value);
ncclResult_t ncclParamGetU32(ncclParamHandle_t handle, uint32_t* value);
ncclResult_t ncclParamGetU64(ncclParamHandle_t handle, uint64_t* value);
ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char** value);
ncclResult_t ncclParamGet(ncclParamHandle_t handle, void* value, int capacity, int* length);
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* length);
ncclResult_t ncclParamGetAllParameterKeys(const char*** keys, int* count);
void ncclParamDumpAll(void);
void ncclResetDebugInit(void);
void ncclResetDebugInitInternal(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
