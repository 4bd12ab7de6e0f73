// Outcomes of methods at given rates: with random weights, what a selection finds and what a gate says tells nothing of a
// real model, but what they cost depends on it. Kernels overwrite flags of gates, and selections before the recalls.
#pragma once

#include <cstdint>

#include "src/model/cuda/retrieval/step_observer.h"

namespace mneme {

// Shares, below 0: as the model has it.
//   turnover    of the selected units of a step (a prompt's window), those that the one before did not select
//   correction  of gates, those that flag: a KV head's, or with kept selections a layer's
struct OutcomeRates {
  float turnover = -1, correction = -1;
  bool any() const { return turnover >= 0 || correction >= 0; }
  bool operator==(const OutcomeRates&) const = default;
};

// Overwrites the flags of gates by cosines, and the cosines of layers' gates, which the selection will evaluate.
void inject_gates_cuda(const StepObserver::Layer& layer, const OutcomeRates& rates, const CudaContext& context);
// Overwrites what KV heads have just selected for this or the next step, with as many units; and the flags of gates by
// missing mass. Where the selection has written `listed` (Layer::listed), a gate by missing mass has been evaluated
// with it.
void inject_selection_cuda(const StepObserver::Layer& layer, SelectWhen when, const OutcomeRates& rates,
                           const CudaContext& context);
void inject_windows_cuda(const SelectWindows& windows, std::int32_t first_row, float turnover,
                         const CudaContext& context);

// All of them, at the rates of construction: CudaForward::observe() captures graphs again.
class InjectedOutcomes final : public StepObserver {
 public:
  explicit InjectedOutcomes(const OutcomeRates& rates) : rates_(rates) {}
  const OutcomeRates& rates() const { return rates_; }
  void after_append(const Layer& layer, const CudaContext& context) override {
    if (rates_.correction >= 0) inject_gates_cuda(layer, rates_, context);
  }
  void after_selection(const Layer& layer, SelectWhen when, const CudaContext& context) override {
    if (rates_.any()) inject_selection_cuda(layer, when, rates_, context);
  }
  void after_windows(const SelectWindows& windows, std::int32_t first_row, const CudaContext& context) override {
    if (rates_.turnover >= 0) inject_windows_cuda(windows, first_row, rates_.turnover, context);
  }

 private:
  OutcomeRates rates_;
};

}  // namespace mneme
