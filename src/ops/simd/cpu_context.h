// What every CPU kernel is handed: where it computes and how strictly.
#pragma once

#include "src/base/thread_pool.h"

namespace mneme {

// kFast: a kernel may choose its tiles by the shape of the batch. kFixed: the same row gives the same bits in every
// batch.
enum class Rounding { kFast, kFixed };

struct CpuContext {
  ThreadPool* pool = nullptr;
  Rounding rounding = Rounding::kFast;
};

}  // namespace mneme
