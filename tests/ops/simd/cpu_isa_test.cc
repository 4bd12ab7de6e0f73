// The program runs once more under each lesser limit (ISAS in tests/ops/CMakeLists.txt).
#include "src/ops/simd/cpu_isa.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace mneme {
namespace {

TEST(CpuIsa, TheVariableIsTheLimit) {
  const char* variable = std::getenv("MNEME_CPU_ISA");
  const std::string name = variable == nullptr ? "amx" : variable;
  const CpuIsa permitted = permitted_cpu_isa();
  EXPECT_EQ(permitted == CpuIsa::kAvx2, name == "avx2");
  EXPECT_EQ(permitted == CpuIsa::kAvx512, name == "avx512");
  EXPECT_EQ(permitted == CpuIsa::kAvx512Vnni, name == "avx512_vnni");
  for (const CpuIsa isa : {CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16})
    EXPECT_FALSE(isa > permitted && kernels_may_use(isa)) << name;
#if HWY_ARCH_X86
  EXPECT_FALSE(permitted == CpuIsa::kAvx2 && (hwy::SupportedTargets() & HWY_AVX3) != 0);
#endif
}

TEST(CpuIsa, NoKernelExceedsHighwaysTarget) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::GetChosenTarget().Update(target);
#if HWY_ARCH_X86
    const bool avx512 = target == HWY_AVX3;
#else
    const bool avx512 = false;
#endif
    EXPECT_FALSE(!avx512 && kernels_may_use(CpuIsa::kAvx512Vnni)) << hwy::TargetName(target);
    hwy::GetChosenTarget().DeInit();
  }
}

}  // namespace
}  // namespace mneme
