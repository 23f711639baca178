// Products by cuBLASLt, which is loaded when it is first needed: programs start where it is missing.
// Row-major matrices are the transposes of column-major ones, so that b is cuBLASLt's first operand:
// c^T = b^T a^T.
#include "trainer/layers/cuda/products.hpp"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "trainer/layers/cuda/product_parts.hpp"

namespace rondo::trainer::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper

/// The functions, by name.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) describe;
  decltype(&cublasLtMatmulDescCreate) create_operation;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
};

Result<Library> load() {
  const char* const named = std::getenv("RONDO_CUBLASLT");
  const std::string usual = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  const std::vector<std::string> places =
      named != nullptr && *named != '\0'
          ? std::vector<std::string>{named}
          : std::vector<std::string>{usual, "/usr/local/cuda/lib64/" + usual};
  void* library = nullptr;  // never closed
  std::string name, why;
  for (const std::string& place : places) {
    name = place;
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (library == nullptr) {
    return Status(
        Code::kUnavailable,
        fmt::format("cuBLASLt, which multiplies matrices on a GPU: {}: install it, or name "
                    "its file in RONDO_CUBLASLT",
                    why));
  }
  Library found{};
  std::string missing;
  const auto find = [&]<class F>(F& function, const char* symbol) {
    function = reinterpret_cast<F>(dlsym(library, symbol));
    if (function == nullptr) missing = symbol;
  };
  find(found.create, "cublasLtCreate");
  find(found.destroy, "cublasLtDestroy");
  find(found.describe, "cublasLtGetStatusString");
  find(found.create_operation, "cublasLtMatmulDescCreate");
  find(found.destroy_operation, "cublasLtMatmulDescDestroy");
  find(found.set_operation, "cublasLtMatmulDescSetAttribute");
  find(found.create_layout, "cublasLtMatrixLayoutCreate");
  find(found.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(found.create_preference, "cublasLtMatmulPreferenceCreate");
  find(found.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(found.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(found.choose, "cublasLtMatmulAlgoGetHeuristic");
  find(found.multiply, "cublasLtMatmul");
  if (missing.empty()) return found;
  return Status(Code::kUnavailable, fmt::format("{} has no {}: it is too old", name, missing));
}

/// The largest power of two, of at most 256, that divides the addresses of all rows: cuBLASLt's
/// algorithms want them to be aligned (CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_*).
uint32_t alignment_of(DataType type, const void* data, size_t stride) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(data) | stride * size_of(type) | 256;
  return static_cast<uint32_t>(bits & -bits);
}
struct Alignments {
  uint32_t a, b, c;  // as DeviceProduct names them
};
Alignments alignments_of(DataType type, const DeviceProduct& p) {
  return {.a = alignment_of(type, p.a.data, p.a.stride),
          .b = alignment_of(type, p.b.data, p.b.stride),
          .c = alignment_of(type, p.c, p.c_stride)};
}

class CublasProducts final : public DeviceProducts {
 public:
  CublasProducts(Device& device, const Library& library, cublasLtHandle_t handle)
      : device_(device),
        tf32_(device.tf32()),
        library_(library),
        handle_(handle),
        workspace_(device, kWorkspaceBytes) {}

  ~CublasProducts() override {
    (void)device_.wait();
    for (auto& [shape, plan] : plans_) forget(plan);
    library_.destroy(handle_);
  }

  void multiply(DataType type, const DeviceProduct& product) override {
    if (!device_.status().ok() || product.m * product.n == 0) return;
    if (product.k == 0) {  // no row: the sum is empty
      if (product.accumulate) return;
      return device_.clear(product.c, product.m * product.c_stride * size_of(type));
    }
    for (const DeviceProduct& part : parts_of(type, product)) {
      const Status done = try_to(type, part);
      if (done.ok()) continue;
      return device_.note(
          {done.code(), fmt::format("product of [{} x {}] and [{} x {}] {}: {}", part.m, part.k,
                                    part.k, part.n, rondo::name(type), done.message())});
    }
  }

 private:
  /// What decides how cuBLASLt multiplies.
  using Shape = std::array<uint64_t, 14>;
  struct ProductPlan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;  // cuBLASLt's a is our b
    cublasLtMatmulAlgo_t algorithm;
  };

  static Shape shape_of(DataType type, const DeviceProduct& p) {
    const Alignments alignments = alignments_of(type, p);
    return {static_cast<uint64_t>(type),
            p.m,
            p.n,
            p.k,
            p.a.stride,
            p.b.stride,
            p.c_stride,
            p.a.transposed,
            p.b.transposed,
            p.accumulate,
            p.bias != nullptr,
            alignments.a,
            alignments.b,
            alignments.c};
  }

  Status status_of(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return {status == CUBLAS_STATUS_ALLOC_FAILED ? Code::kResourceExhausted : Code::kSystem,
            fmt::format("{}: {}", what, library_.describe(status))};
  }

  Status try_to(DataType type, const DeviceProduct& product) {
    auto [found, added] = plans_.try_emplace(shape_of(type, product));
    ProductPlan& plan = found->second;
    if (added) {
      const Status planned = make(type, product, plan);
      if (!planned.ok()) {
        forget(plan);
        plans_.erase(found);
        return planned;
      }
    }
    if (product.bias != nullptr) {
      RONDO_TRY(set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias));
    }
    const float one = 1, kept = product.accumulate ? 1 : 0;
    return status_of(
        library_.multiply(handle_, plan.operation, &one, product.b.data, plan.a, product.a.data,
                          plan.b, &kept, product.c, plan.c, product.c, plan.c, &plan.algorithm,
                          workspace_.data(), workspace_.bytes(),
                          static_cast<cudaStream_t>(device_.stream())),
        "cublasLtMatmul");
  }

  template <class Value>
  Status set(const ProductPlan& plan, cublasLtMatmulDescAttributes_t attribute,
             const Value& value) {
    return status_of(library_.set_operation(plan.operation, attribute, &value, sizeof value),
                     "cublasLtMatmulDescSetAttribute");
  }

  Status lay_out(cublasLtMatrixLayout_t& layout, cudaDataType_t type, size_t rows, size_t columns,
                 size_t stride) {
    return status_of(
        library_.create_layout(&layout, type, rows, columns, static_cast<int64_t>(stride)),
        "cublasLtMatrixLayoutCreate");
  }

  Status make(DataType type, const DeviceProduct& p, ProductPlan& plan) {
    const cudaDataType_t element = type == DataType::kBFloat16  ? CUDA_R_16BF
                                   : type == DataType::kFloat16 ? CUDA_R_16F
                                                                : CUDA_R_32F;
    const bool tf32 = type == DataType::kFloat32 && tf32_;
    const cublasComputeType_t arithmetic = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    RONDO_TRY(status_of(library_.create_operation(&plan.operation, arithmetic, CUDA_R_32F),
                        "cublasLtMatmulDescCreate"));
    const cublasOperation_t first = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    RONDO_TRY(set(plan, CUBLASLT_MATMUL_DESC_TRANSA, first));
    RONDO_TRY(set(plan, CUBLASLT_MATMUL_DESC_TRANSB, second));
    const cublasLtEpilogue_t epilogue =
        p.bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS;
    RONDO_TRY(set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    if (p.bias != nullptr) RONDO_TRY(set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    RONDO_TRY(lay_out(plan.a, element, p.b.transposed ? p.k : p.n, p.b.transposed ? p.n : p.k,
                      p.b.stride));
    RONDO_TRY(lay_out(plan.b, element, p.a.transposed ? p.m : p.k, p.a.transposed ? p.k : p.m,
                      p.a.stride));
    RONDO_TRY(lay_out(plan.c, element, p.n, p.m, p.c_stride));
    cublasLtMatmulPreference_t preference = nullptr;
    RONDO_TRY(status_of(library_.create_preference(&preference), "cublasLtMatmulPreferenceCreate"));
    const Status chosen = choose(alignments_of(type, p), plan, preference);
    library_.destroy_preference(preference);
    return chosen;
  }

  Status choose(const Alignments& alignments, ProductPlan& plan,
                cublasLtMatmulPreference_t preference) {
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return status_of(library_.set_preference(preference, attribute, &value, sizeof value),
                       "cublasLtMatmulPreferenceSetAttribute");
    };
    RONDO_TRY(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}));
    RONDO_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.b));
    RONDO_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.a));
    RONDO_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c));
    RONDO_TRY(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.c));
    // In place of sums in an order that differs from run to run.
    RONDO_TRY(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                     uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    RONDO_TRY(status_of(library_.choose(handle_, plan.operation, plan.a, plan.b, plan.c, plan.c,
                                        preference, 1, &result, &found),
                        "cublasLtMatmulAlgoGetHeuristic"));
    if (found == 0) return {Code::kSystem, "cuBLASLt knows no way"};
    plan.algorithm = result.algo;
    return {};
  }

  void forget(ProductPlan& plan) {
    for (cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.c}) {
      if (layout != nullptr) library_.destroy_layout(layout);
    }
    if (plan.operation != nullptr) library_.destroy_operation(plan.operation);
  }

  Device& device_;
  const bool tf32_;
  const Library library_;
  const cublasLtHandle_t handle_;
  DeviceArray<std::byte> workspace_;
  std::map<Shape, ProductPlan> plans_;
};

}  // namespace

Result<std::unique_ptr<DeviceProducts>> open_products(Device& device) {
  const Library library = RONDO_TRY(load());
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t created = library.create(&handle);
  if (created != CUBLAS_STATUS_SUCCESS) {
    return Status(Code::kSystem, fmt::format("cublasLtCreate: {}", library.describe(created)));
  }
  return std::unique_ptr<DeviceProducts>(new CublasProducts(device, library, handle));
}

}  // namespace rondo::trainer::cuda
