// See settings.hpp. A struct of an older header is shorter, or has padding where a newer one has a
// field: so the fields that its version lacks are reset after the copy.
#include "nccl/settings.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>

namespace rondo::nccl {
namespace {

constexpr int kMostCtas = 64;  // of NCCL's communicators, and of rondo's

constexpr unsigned version(unsigned major, unsigned minor, unsigned patch = 0) {
  return minor <= 8 ? 1000 * major + 100 * minor + patch : 10000 * major + 100 * minor + patch;
}

/// Copies what the caller's struct and ours have in common.
template <class Struct>
Status read_sized(const Struct* given, Struct& into, const char* call, const char* initializer) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  constexpr size_t kHeader = offsetof(Struct, version) + sizeof into.version;
  if (size >= kHeader) std::memcpy(static_cast<void*>(&into), given, std::min(size, sizeof into));
  if (size < kHeader || into.magic != kNcclMagic) {
    return refuse(std::string(call) + ": the config was not initialised with " + initializer);
  }
  return {};
}

struct FieldLimits {
  const char* name;
  int value, least, most;
};

Status check_limits(const char* call, std::initializer_list<FieldLimits> all) {
  for (const FieldLimits& it : all) {
    if (it.value != NCCL_CONFIG_UNDEF_INT && (it.value < it.least || it.value > it.most)) {
      return refuse(std::string(call) + ": the config's " + it.name + " is " +
                    std::to_string(it.value));
    }
  }
  return {};
}

}  // namespace

Result<CommSettings> read_config(const ncclConfig_t* config, const CommSettings& inherited,
                                 const char* call) {
  if (config == nullptr) return inherited;
  ncclConfig_t it{};
  it.blocking = it.minCTAs = it.maxCTAs = it.cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
  it.splitShare = it.shrinkShare = NCCL_CONFIG_UNDEF_INT;
  RONDO_TRY(read_sized(config, it, call, "NCCL_CONFIG_INITIALIZER"));
  if (it.version < version(2, 17)) {
    it.minCTAs = it.maxCTAs = it.cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
  }
  if (it.version < version(2, 18)) it.splitShare = NCCL_CONFIG_UNDEF_INT;
  if (it.version < version(2, 27)) it.shrinkShare = NCCL_CONFIG_UNDEF_INT;
  RONDO_TRY(check_limits(call, {{"blocking", it.blocking, 0, 1},
                                {"cgaClusterSize", it.cgaClusterSize, 0, INT_MAX},
                                {"minCTAs", it.minCTAs, 1, INT_MAX},
                                {"maxCTAs", it.maxCTAs, 1, INT_MAX},
                                {"splitShare", it.splitShare, 0, 1},
                                {"shrinkShare", it.shrinkShare, 0, 1}}));
  CommSettings read = inherited;
  if (it.blocking != NCCL_CONFIG_UNDEF_INT) read.blocking = it.blocking == 1;
  if (it.maxCTAs != NCCL_CONFIG_UNDEF_INT) {
    read.max_channels = std::min(it.maxCTAs, kMostCtas);
  }
  const bool has_name = config->size >= offsetof(ncclConfig_t, commName) + sizeof it.commName;
  if (has_name && it.commName != nullptr) read.name = it.commName;
  return read;
}

Result<CallOptions> read_config(const ncclCollConfig_t* config, const char* call) {
  CallOptions options;
  if (config == nullptr) return options;
  ncclCollConfig_t it{};
  it.forceAlgSelection = 1;
  RONDO_TRY(read_sized(config, it, call, "NCCL_COLLCONFIG_INITIALIZER"));
  if (it.launchCompletionEvent != nullptr) {
    return unsupported(std::string(call) + ": rondo records no launchCompletionEvent");
  }
  const std::string_view wanted = it.algSelection == nullptr ? "" : it.algSelection;
  const auto algorithm = internal::parse<Algorithm>(wanted, kAlgorithmNames);
  if (algorithm) options.algorithm = *algorithm;
  if (!wanted.empty() && !algorithm && it.forceAlgSelection != 0) {
    return unsupported(std::string(call) + ": the config's algSelection is '" +
                       std::string(wanted) +
                       "', which is none of rondo's algorithms (ring, tree, two-shot, ...)");
  }
  return options;
}

}  // namespace rondo::nccl
