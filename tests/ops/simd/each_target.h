// Runs a check under every instruction set that Highway compiled for and this machine supports.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>

namespace mneme {

template <class Check>
void each_target(const Check& check) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    check();
    hwy::GetChosenTarget().DeInit();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace mneme
