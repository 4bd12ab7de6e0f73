#include "src/ops/gemm/device/gemm_cublaslt_cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <string>

#include "src/base/error.h"
#include "src/cuda/memory.h"

namespace mneme {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;

// Library functions, resolved at run time.
struct Library {
#define MNEME_LT_FUNCTIONS(f)                                                                                          \
  f(cublasLtCreate) f(cublasLtDestroy) f(cublasLtMatmul) f(cublasLtMatmulDescCreate) f(cublasLtMatmulDescDestroy)      \
      f(cublasLtMatmulDescSetAttribute) f(cublasLtMatrixLayoutCreate) f(cublasLtMatrixLayoutDestroy)                   \
          f(cublasLtMatmulPreferenceCreate) f(cublasLtMatmulPreferenceDestroy) f(cublasLtMatmulPreferenceSetAttribute) \
              f(cublasLtMatmulAlgoGetHeuristic)
#define MNEME_LT_DECLARE(name) decltype(&::name) name = nullptr;
  MNEME_LT_FUNCTIONS(MNEME_LT_DECLARE)
#undef MNEME_LT_DECLARE
};

const Library& library() {
  static const Library loaded = [] {
    const std::string versioned = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    const std::string fallback = fmt::format("/usr/local/cuda/lib64/{}", versioned);
    void* handle = nullptr;
    for (const char* name : {versioned.c_str(), fallback.c_str()})
      if (handle == nullptr) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      fail(ErrorKind::kDevice,
           "{} is needed for GEMMs on the device and was not found ({}): install the CUDA toolkit's cuBLAS, "
           "or put its folder into LD_LIBRARY_PATH",
           versioned, dlerror());
    Library l;
#define MNEME_LT_FIND(name)                                           \
  l.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name)); \
  if (l.name == nullptr) fail(ErrorKind::kDevice, "{} lacks {}", versioned, #name);
    MNEME_LT_FUNCTIONS(MNEME_LT_FIND)
#undef MNEME_LT_FIND
    return l;
  }();
  return loaded;
}

void check(cublasStatus_t status, const char* what, const CublasLtProblem& p) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ErrorKind::kDevice, "cuBLASLt: {} failed with status {} for {} x {} x {}", what, static_cast<int>(status), p.m,
         p.n, p.k);
}

// In cuBLASLt's column-major terms y^T [n x m] = w^T' x^T: A is w (transposed), B is x.
struct Planned {
  cublasLtMatmulDesc_t gemm = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

}  // namespace

struct CublasLtGemm::Impl {
  cublasLtHandle_t handle = nullptr;
  DeviceBuffer workspace{kWorkspace, "cuBLASLt's workspace"};
  std::map<CublasLtProblem, Planned> plans;

  const Planned& plan(const CublasLtProblem& p);
  void select_algorithm(const CublasLtProblem& p, Planned& out) const;
};

CublasLtGemm::CublasLtGemm() : impl_(std::make_unique<Impl>()) {
  check(library().cublasLtCreate(&impl_->handle), "starting", {});
}

CublasLtGemm::~CublasLtGemm() {
  for (auto& [shape, p] : impl_->plans) {
    library().cublasLtMatmulDescDestroy(p.gemm);
    for (cublasLtMatrixLayout_t layout : {p.a, p.b, p.c}) library().cublasLtMatrixLayoutDestroy(layout);
  }
  library().cublasLtDestroy(impl_->handle);
}

void CublasLtGemm::Impl::select_algorithm(const CublasLtProblem& p, Planned& out) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(library().cublasLtMatmulPreferenceCreate(&preference), "a preference", p);
  const std::size_t bytes = kWorkspace;
  check(library().cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                       sizeof(bytes)),
        "a preference", p);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = library().cublasLtMatmulAlgoGetHeuristic(handle, out.gemm, out.a, out.b, out.c, out.c,
                                                                         preference, 1, &result, &found);
  library().cublasLtMatmulPreferenceDestroy(preference);
  check(status, "selecting a kernel", p);
  if (found == 0) fail(ErrorKind::kDevice, "cuBLASLt has no kernel for {} x {} x {}", p.m, p.n, p.k);
  out.algorithm = result.algo;
}

const Planned& CublasLtGemm::Impl::plan(const CublasLtProblem& p) {
  const auto [it, fresh] = plans.try_emplace(p);
  if (!fresh) return it->second;
  Planned& out = it->second;
  const cudaDataType_t y_type = p.f32 ? CUDA_R_32F : CUDA_R_16BF;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(library().cublasLtMatmulDescCreate(&out.gemm, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a GEMM", p);
  check(
      library().cublasLtMatmulDescSetAttribute(out.gemm, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "a GEMM", p);
  const auto u = [](std::int64_t v) { return static_cast<std::uint64_t>(v); };
  check(library().cublasLtMatrixLayoutCreate(&out.a, CUDA_R_16BF, u(p.k), u(p.n), p.k), "a layout", p);
  check(library().cublasLtMatrixLayoutCreate(&out.b, CUDA_R_16BF, u(p.k), u(p.m), p.k), "a layout", p);
  check(library().cublasLtMatrixLayoutCreate(&out.c, y_type, u(p.n), u(p.m), p.stride == 0 ? p.n : p.stride),
        "a layout", p);
  select_algorithm(p, out);
  return out;
}

void CublasLtGemm::plan(const CublasLtProblem& p) {
  impl_->plan(p);
}

void CublasLtGemm::run(const CublasLtProblem& p, const void* x, const void* w, void* y, const CudaContext& context) {
  if (p.m == 0) return;
  const Planned& plan = impl_->plan(p);
  const float one = 1.0f, beta = p.accumulate ? 1.0f : 0.0f;
  check(library().cublasLtMatmul(impl_->handle, plan.gemm, &one, w, plan.a, x, plan.b, &beta, y, plan.c, y, plan.c,
                                 &plan.algorithm, impl_->workspace.data(), kWorkspace, context.stream),
        "a GEMM", p);
}

}  // namespace mneme
