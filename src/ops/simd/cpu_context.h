// Thread pool and rounding mode, passed to every CPU kernel.
#pragma once

#include "src/base/thread_pool.h"

namespace mneme {

// kFast: kernels may select tiles by the shape of the batch. kFixed: a row's result is bit-identical in every batch.
enum class Rounding { kFast, kFixed };

struct CpuContext {
  ThreadPool* pool = nullptr;
  Rounding rounding = Rounding::kFast;
};

}  // namespace mneme
