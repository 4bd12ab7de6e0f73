// Instruction sets that CPU kernels dispatch on, and a limit on them.
#pragma once

#include <string_view>

namespace mneme {

// Each includes those before it. Whether the CPU has AMX is for oneDNN to say, which alone uses it.
enum class CpuIsa { kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

// Whether a kernel may use `isa`: the CPU has it, MNEME_CPU_ISA permits it, and Highway's current target is not below
// AVX-512 (tests select lesser ones).
// Requires  kAvx512Vnni or kAvx512Bf16: what Highway 1.0.3 dispatches itself needs no question.
// Errors    as permitted_cpu_isa()
bool kernels_may_use(CpuIsa isa);

// The largest set that the environment variable MNEME_CPU_ISA permits: avx2, avx512, avx512_vnni, avx512_bf16 or amx;
// kAmx where it is not set. It is read once, before main(), and limits Highway's targets and oneDNN's as well. A set that
// the CPU lacks is no limit.
// Errors    kOption where the variable has another value
CpuIsa permitted_cpu_isa();

}  // namespace mneme
