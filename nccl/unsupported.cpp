// What rondo has no counterpart of: each call answers ncclInvalidUsage, with a sentence for
// ncclGetLastError.
#include "nccl/errors.hpp"

namespace {

using rondo::nccl::report;
using rondo::nccl::unsupported;

ncclResult_t one_sided(const char* call) {
  return report(unsupported(std::string(call) +
                            ": rondo has no one-sided messages; use ncclSend and ncclRecv"));
}

ncclResult_t device_api(const char* call) {
  return report(unsupported(
      std::string(call) +
      ": rondo has no device API; kernels cannot call it, collectives run as their own"));
}

ncclResult_t parameter(const char* call) {
  return report(unsupported(
      std::string(call) +
      ": rondo has none of NCCL's parameters; rondo-run --help-environment lists its own"));
}

ncclResult_t suspension(const char* call) {
  return report(unsupported(std::string(call) +
                            ": rondo's communicators keep their memory; destroy and create them"));
}

}  // namespace

ncclResult_t ncclCommSuspend(ncclComm_t /*comm*/, int /*flags*/) {
  return suspension("ncclCommSuspend");
}
ncclResult_t ncclCommResume(ncclComm_t /*comm*/) { return suspension("ncclCommResume"); }

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  if (config != nullptr && config->magic == kNcclMagic && config->mode == 0) return ncclSuccess;
  return report(
      unsupported("ncclSetEncryption: rondo authenticates connections and does not encrypt them; "
                  "its SECURITY.md says how "
                  "to run over a tunnel"));
}

ncclResult_t ncclPutSignal(const void* /*buffer*/, size_t /*count*/, ncclDataType_t /*type*/,
                           int /*peer*/, ncclWindow_t /*window*/, size_t /*offset*/, int /*signal*/,
                           int /*context*/, unsigned int /*flags*/, ncclComm_t /*comm*/,
                           ncclStream_t /*stream*/) {
  return one_sided("ncclPutSignal");
}
ncclResult_t ncclSignal(int /*peer*/, int /*signal*/, int /*context*/, unsigned int /*flags*/,
                        ncclComm_t /*comm*/, ncclStream_t /*stream*/) {
  return one_sided("ncclSignal");
}
ncclResult_t ncclWaitSignal(int /*count*/, void* /*descriptors*/, ncclComm_t /*comm*/,
                            ncclStream_t /*stream*/) {
  return one_sided("ncclWaitSignal");
}

ncclResult_t ncclDevCommCreate(ncclComm_t /*comm*/, const void* /*requirements*/,
                               void* /*device_comm*/) {
  return device_api("ncclDevCommCreate");
}
ncclResult_t ncclDevCommDestroy(ncclComm_t /*comm*/, const void* /*device_comm*/) {
  return device_api("ncclDevCommDestroy");
}
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/, int /*rank*/,
                                     void** /*pointer*/) {
  return device_api("ncclGetLsaDevicePointer");
}
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/,
                                             void** /*pointer*/) {
  return device_api("ncclGetLsaMultimemDevicePointer");
}
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/,
                                          void* /*handle*/, void** /*pointer*/) {
  return device_api("ncclGetMultimemDevicePointer");
}
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/, int /*peer*/,
                                      void** /*pointer*/) {
  return device_api("ncclGetPeerDevicePointer");
}
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t /*window*/, size_t /*offset*/,
                                         uint32_t* /*id*/, size_t* /*le_offset*/) {
  return device_api("ncclGetMultimemDeviceLeInfo");
}
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t /*window*/, size_t /*offset*/, int /*peer*/,
                                    ncclTeam_t /*team*/, uint32_t* /*id*/, size_t* /*le_offset*/) {
  return device_api("ncclGetCftDeviceLeInfo");
}
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t /*window*/, size_t /*offset*/, int /*peer*/,
                                     uint32_t* /*id*/, size_t* /*le_offset*/) {
  return device_api("ncclGetPeerDeviceLeInfo");
}
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t /*team*/, int /*count*/, void* /*handle*/,
                                             void* /*requirement*/) {
  return device_api("ncclLsaBarrierCreateRequirement");
}
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t /*comm*/, ncclTeam_t /*team*/,
                                             int /*count*/, void* /*handle*/,
                                             void* /*requirement*/) {
  return device_api("ncclGinBarrierCreateRequirement");
}
ncclResult_t ncclGinOutboxCreateRequirement(int /*blocks*/, int /*size_log2*/, void* /*handle*/,
                                            void* /*requirement*/) {
  return device_api("ncclGinOutboxCreateRequirement");
}
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t /*peers*/, int /*blocks*/,
                                              int /*size_log2*/, void* /*handle*/,
                                              void* /*requirement*/) {
  return device_api("ncclGinInboxA2ACreateRequirement");
}
ncclResult_t ncclLLA2ACreateRequirement(int /*blocks*/, int /*slots*/, void* /*handle*/,
                                        void* /*requirement*/) {
  return device_api("ncclLLA2ACreateRequirement");
}
int ncclLLA2ACalcSlots(int /*elements*/, int /*element_bytes*/) {
  (void)device_api("ncclLLA2ACalcSlots");
  return 0;
}

ncclResult_t ncclParamBind(ncclParamHandle_t* /*handle*/, const char* /*key*/) {
  return parameter("ncclParamBind");
}
ncclResult_t ncclParamGetI8(ncclParamHandle_t /*handle*/, int8_t* /*value*/) {
  return parameter("ncclParamGetI8");
}
ncclResult_t ncclParamGetI16(ncclParamHandle_t /*handle*/, int16_t* /*value*/) {
  return parameter("ncclParamGetI16");
}
ncclResult_t ncclParamGetI32(ncclParamHandle_t /*handle*/, int32_t* /*value*/) {
  return parameter("ncclParamGetI32");
}
ncclResult_t ncclParamGetI64(ncclParamHandle_t /*handle*/, int64_t* /*value*/) {
  return parameter("ncclParamGetI64");
}
ncclResult_t ncclParamGetU8(ncclParamHandle_t /*handle*/, uint8_t* /*value*/) {
  return parameter("ncclParamGetU8");
}
ncclResult_t ncclParamGetU16(ncclParamHandle_t /*handle*/, uint16_t* /*value*/) {
  return parameter("ncclParamGetU16");
}
ncclResult_t ncclParamGetU32(ncclParamHandle_t /*handle*/, uint32_t* /*value*/) {
  return parameter("ncclParamGetU32");
}
ncclResult_t ncclParamGetU64(ncclParamHandle_t /*handle*/, uint64_t* /*value*/) {
  return parameter("ncclParamGetU64");
}
ncclResult_t ncclParamGetStr(ncclParamHandle_t /*handle*/, const char** /*value*/) {
  return parameter("ncclParamGetStr");
}
ncclResult_t ncclParamGet(ncclParamHandle_t /*handle*/, void* /*value*/, int /*capacity*/,
                          int* /*length*/) {
  return parameter("ncclParamGet");
}
ncclResult_t ncclParamGetParameter(const char* /*key*/, const char** /*value*/, int* /*length*/) {
  return parameter("ncclParamGetParameter");
}
ncclResult_t ncclParamGetAllParameterKeys(const char*** /*keys*/, int* /*count*/) {
  return parameter("ncclParamGetAllParameterKeys");
}
void ncclParamDumpAll() { (void)parameter("ncclParamDumpAll"); }

// rondo reads RONDO_LOG once.
void ncclResetDebugInit() {}
void ncclResetDebugInitInternal() {}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclCommSuspend")]] decltype(ncclCommSuspend) pncclCommSuspend;
[[gnu::alias("ncclCommResume")]] decltype(ncclCommResume) pncclCommResume;
[[gnu::alias("ncclSetEncryption")]] decltype(ncclSetEncryption) pncclSetEncryption;
[[gnu::alias("ncclPutSignal")]] decltype(ncclPutSignal) pncclPutSignal;
[[gnu::alias("ncclSignal")]] decltype(ncclSignal) pncclSignal;
[[gnu::alias("ncclWaitSignal")]] decltype(ncclWaitSignal) pncclWaitSignal;
[[gnu::alias("ncclDevCommCreate")]] decltype(ncclDevCommCreate) pncclDevCommCreate;
[[gnu::alias("ncclDevCommDestroy")]] decltype(ncclDevCommDestroy) pncclDevCommDestroy;
[[gnu::alias(
    "ncclGetLsaDevicePointer")]] decltype(ncclGetLsaDevicePointer) pncclGetLsaDevicePointer;
[[gnu::alias("ncclGetLsaMultimemDevicePointer")]] decltype(ncclGetLsaMultimemDevicePointer)
    pncclGetLsaMultimemDevicePointer;
[[gnu::alias("ncclGetMultimemDevicePointer")]] decltype(ncclGetMultimemDevicePointer)
    pncclGetMultimemDevicePointer;
[[gnu::alias(
    "ncclGetPeerDevicePointer")]] decltype(ncclGetPeerDevicePointer) pncclGetPeerDevicePointer;
[[gnu::alias("ncclGetMultimemDeviceLeInfo")]] decltype(ncclGetMultimemDeviceLeInfo)
    pncclGetMultimemDeviceLeInfo;
[[gnu::alias("ncclGetCftDeviceLeInfo")]] decltype(ncclGetCftDeviceLeInfo) pncclGetCftDeviceLeInfo;
[[gnu::alias(
    "ncclGetPeerDeviceLeInfo")]] decltype(ncclGetPeerDeviceLeInfo) pncclGetPeerDeviceLeInfo;
[[gnu::alias("ncclLsaBarrierCreateRequirement")]] decltype(ncclLsaBarrierCreateRequirement)
    pncclLsaBarrierCreateRequirement;
[[gnu::alias("ncclGinBarrierCreateRequirement")]] decltype(ncclGinBarrierCreateRequirement)
    pncclGinBarrierCreateRequirement;
[[gnu::alias("ncclGinOutboxCreateRequirement")]] decltype(ncclGinOutboxCreateRequirement)
    pncclGinOutboxCreateRequirement;
[[gnu::alias("ncclGinInboxA2ACreateRequirement")]] decltype(ncclGinInboxA2ACreateRequirement)
    pncclGinInboxA2ACreateRequirement;
[[gnu::alias("ncclLLA2ACreateRequirement")]] decltype(ncclLLA2ACreateRequirement)
    pncclLLA2ACreateRequirement;
[[gnu::alias("ncclLLA2ACalcSlots")]] decltype(ncclLLA2ACalcSlots) pncclLLA2ACalcSlots;
[[gnu::alias("ncclParamBind")]] decltype(ncclParamBind) pncclParamBind;
[[gnu::alias("ncclParamGetI8")]] decltype(ncclParamGetI8) pncclParamGetI8;
[[gnu::alias("ncclParamGetI16")]] decltype(ncclParamGetI16) pncclParamGetI16;
[[gnu::alias("ncclParamGetI32")]] decltype(ncclParamGetI32) pncclParamGetI32;
[[gnu::alias("ncclParamGetI64")]] decltype(ncclParamGetI64) pncclParamGetI64;
[[gnu::alias("ncclParamGetU8")]] decltype(ncclParamGetU8) pncclParamGetU8;
[[gnu::alias("ncclParamGetU16")]] decltype(ncclParamGetU16) pncclParamGetU16;
[[gnu::alias("ncclParamGetU32")]] decltype(ncclParamGetU32) pncclParamGetU32;
[[gnu::alias("ncclParamGetU64")]] decltype(ncclParamGetU64) pncclParamGetU64;
[[gnu::alias("ncclParamGetStr")]] decltype(ncclParamGetStr) pncclParamGetStr;
[[gnu::alias("ncclParamGet")]] decltype(ncclParamGet) pncclParamGet;
[[gnu::alias("ncclParamGetParameter")]] decltype(ncclParamGetParameter) pncclParamGetParameter;
[[gnu::alias("ncclParamGetAllParameterKeys")]] decltype(ncclParamGetAllParameterKeys)
    pncclParamGetAllParameterKeys;
[[gnu::alias("ncclParamDumpAll")]] decltype(ncclParamDumpAll) pncclParamDumpAll;
[[gnu::alias("ncclResetDebugInit")]] decltype(ncclResetDebugInit) pncclResetDebugInit;
}
#pragma GCC visibility pop
