// How a GPU runs a plan. One table of fused selections; the unfused selection takes whatever they do not. Pure functions
// of the plan: a build without CUDA prints the same (`mneme methods`). docs/design/device-path.md has the whole path.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "src/recipes/compile.h"

namespace mneme {

enum class DeviceForm : std::uint8_t {
  kPlain,    // attends all stored tokens, or a window
  kFused,    // selects by a kernel of fused_selections()
  kUnfused,  // selects by score, pool and top-k kernels that take any index, pool and schedule
  kHost,     // host_reason(): the device multiplies, the host selects and attends
};

// Head sizes of the fused selections.
inline constexpr std::int32_t kFusedHeadDims[] = {64, 128};
// Most tokens that k-means takes on a device at a time.
inline constexpr std::int32_t kDeviceClusterTokens = 8192;
// Most tokens of a page whose keys a device clusters or sketches.
inline constexpr std::int32_t kDevicePageTokens = 64;

struct FusedSelection {
  std::string_view what, kernel;
  bool (*covers)(const Plan& plan);  // beside head sizes and a pool of scores
  bool weighs_attention = false;     // takes softmaxes over sinks and window too (domain=attention, eps_of=attended)
};
std::span<const FusedSelection> fused_selections();

// The block of a plan that no kernel has, with what a kernel would take; null: there is none. The host then selects and
// attends (src/model/cuda/host_attention.h), as it does for prompts with a marked question.
const char* host_reason(const Plan& plan);

DeviceForm device_form(const Plan& plan);

// Whether units are attended token by token: single tokens, lists, pages of another size than 32, and pages whose index
// has groups of more tokens.
bool attends_by_token(const Plan& plan);
// Pages of 32, attended as pages, whose index is UnitEntries: not the boxes that the kernel that stores keys maintains.
bool has_page_entries(const Plan& plan);
// Sets units and region of a selection as the device has them: pages or tokens, sinks and window in whole units, and room
// for `budget` tokens.
void set_slot_region(const Plan& plan, std::int32_t budget, SelectionPlan& selection);
// Whether local and remote part are attended separately: by rotated queries, or up to the token.
bool attends_in_two_parts(const Plan& plan);

}  // namespace mneme
