#include "src/ops/simd/cpu_isa.h"

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/simd/cpu_isa.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {

bool IsAvx512() {
  return HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL;
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {

HWY_EXPORT(IsAvx512);

namespace {

constexpr std::array<std::pair<std::string_view, CpuIsa>, 5> kNames = {{{"avx2", CpuIsa::kAvx2},
                                                                        {"avx512", CpuIsa::kAvx512},
                                                                        {"avx512_vnni", CpuIsa::kAvx512Vnni},
                                                                        {"avx512_bf16", CpuIsa::kAvx512Bf16},
                                                                        {"amx", CpuIsa::kAmx}}};

struct Limit {
  std::string text;           // of the variable
  std::optional<CpuIsa> isa;  // none: the text is no name

  Limit() {
    const char* value = std::getenv("MNEME_CPU_ISA");
    text = value == nullptr || *value == '\0' ? "amx" : value;
    for (const auto& [name, set] : kNames)
      if (name == text) isa = set;
#if HWY_ARCH_X86
    if (isa == CpuIsa::kAvx2) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
#endif
  }
};

// Before main(): Highway keeps the target of its first dispatch.
const Limit kLimit;

bool cpu_has(CpuIsa isa) {
#if HWY_ARCH_X86_64
  static const bool vnni = __builtin_cpu_supports("avx512vnni") != 0;
  static const bool bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  return isa == CpuIsa::kAvx512Vnni ? vnni : bf16;
#else
  return false;
#endif
}

}  // namespace

bool kernels_may_use(CpuIsa isa) {
  MNEME_CHECK(isa == CpuIsa::kAvx512Vnni || isa == CpuIsa::kAvx512Bf16, "not for Highway's own targets");
  return cpu_has(isa) && permitted_cpu_isa() >= isa && HWY_DYNAMIC_DISPATCH(IsAvx512)();
}

CpuIsa permitted_cpu_isa() {
  if (!kLimit.isa)
    fail(ErrorKind::kOption, "MNEME_CPU_ISA: expected avx2, avx512, avx512_vnni, avx512_bf16 or amx, found \"{}\"",
         kLimit.text);
  return *kLimit.isa;
}

}  // namespace mneme
#endif  // HWY_ONCE
