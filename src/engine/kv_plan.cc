#include "src/engine/kv_plan.h"

#include <algorithm>
#include <limits>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/underlying.h"

namespace mneme {
namespace {

void check_options(const EngineOptions& o, std::int64_t model_context) {
  if (o.max_sequences < 1) fail(ErrorKind::kOption, "max_sequences: expected 1 or more, found {}", o.max_sequences);
  if (o.max_batched_tokens < 1) {
    fail(ErrorKind::kOption, "max_batched_tokens: expected 1 or more, found {}", o.max_batched_tokens);
  }
  if (!(o.inter_token_ms >= 0)) {
    fail(ErrorKind::kOption, "inter_token_ms: expected 0 (steps are full) or more, found {}", o.inter_token_ms);
  }
  if (o.kv_memory_bytes < 0) {
    fail(ErrorKind::kOption, "kv_memory_bytes: expected 0 (automatic) or more, found {}", o.kv_memory_bytes);
  }
  if (o.kv_spill.bytes < 0 || (o.kv_spill.bytes > 0 && o.kv_spill.folder.empty())) {
    fail(ErrorKind::kOption, "kv_spill: expected a folder and 0 bytes (none) or more, found '{}' and {}",
         o.kv_spill.folder, o.kv_spill.bytes);
  }
  if (o.kv_spill.bytes > 0 && o.device != Device::kCpu)
    fail(ErrorKind::kUnsupported, "kv_spill: a GPU reads pages of page-locked memory, which cannot lie in a file");
  if (o.context < 0 || o.context > model_context) {
    fail(ErrorKind::kOption, "context: expected 0 (all) to {}, the tokens that the model was loaded for, found {}",
         model_context, o.context);
  }
}

// Pages of the longest sequence that so many blocks hold.
std::int64_t pages_of_blocks(const KvShape& shape, const KvWindows& windows, std::int64_t blocks) {
  const std::int64_t per_page = shape.blocks_per_page(), most = windows.most_pages(windows.step_tokens);
  const std::int64_t of_windows = std::int64_t{windows.n_layers()} * shape.n_kv_heads;
  // Up to `most` pages all layers grow, then those without a window.
  if (of_windows == 0 || of_windows == per_page || blocks / per_page <= most) return blocks / per_page;
  return (blocks - of_windows * most) / (per_page - of_windows);
}

}  // namespace

std::int64_t blocks_of(const KvShape& shape, std::int64_t n_tokens) {
  return pages_of(n_tokens) * shape.blocks_per_page() + (n_tokens > 0 ? shape.state_blocks() : 0);
}

std::int64_t blocks_of(const KvShape& shape, const KvWindows& windows, std::int64_t n_tokens) {
  const std::int64_t pages = pages_of(n_tokens), most = windows.most_pages(windows.step_tokens);
  const std::int64_t spared = windows.n_layers() > 0 ? std::max<std::int64_t>(0, pages - most) : 0;
  const std::int64_t states = n_tokens > 0 ? shape.state_blocks() : 0;
  return states + pages * shape.blocks_per_page() - spared * windows.n_layers() * shape.n_kv_heads;
}

DType kv_dtype_of(const EngineOptions& options) {
  switch (options.kv_cache_dtype) {
    case KvDtype::kBf16:
      return DType::kBF16;
    case KvDtype::kF16:
      return DType::kF16;
    case KvDtype::kInt8:
      return DType::kInt8;
    case KvDtype::kFp8:
      return DType::kFp8;
  }
  MNEME_CHECK(false, "keys and values of type {}", underlying(options.kv_cache_dtype));
}

KvPlan plan_kv(const KvShape& shape, const EngineOptions& options, std::int64_t model_context,
               std::int64_t available_bytes, const KvWindows& windows) {
  check_options(options, model_context);
  // The largest that block ids reach, and positions, which stay below 2^31 - 32.
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kMaxTokens = kMaxBlocks / kPageTokens * kPageTokens - kPageTokens;
  const std::int64_t per_page = shape.blocks_per_page();
  const std::int64_t page_bytes = shape.page_bytes();
  const std::int64_t memory =
      options.kv_memory_bytes > 0 ? options.kv_memory_bytes : std::max<std::int64_t>(available_bytes, 0);
  if (shape.state_bytes > 0 && options.kv_spill.bytes > 0)
    fail(ErrorKind::kUnsupported,
         "kv_spill: this model's linear attention has states, which stay in memory whatever a file holds: leave the "
         "option out");
  const std::int64_t spill = std::min(options.kv_spill.bytes, std::numeric_limits<std::int64_t>::max() - memory);
  const std::int64_t room = memory + spill;
  const std::int64_t blocks_in_room = std::min(room / page_bytes, kMaxBlocks);
  const std::int64_t pages_in_room =
      pages_of_blocks(shape, windows, std::max<std::int64_t>(0, blocks_in_room - shape.state_blocks()));

  KvPlan plan;
  plan.context = options.context > 0 ? options.context : model_context;
  plan.context = std::min(plan.context, kMaxTokens);
  if (pages_of(plan.context) > pages_in_room) {
    if (options.context > 0 || pages_in_room == 0) {
      fail(ErrorKind::kResource,
           "one sequence of {} tokens takes {} bytes of KV cache ({} a token); {} bytes are {}: room for {} "
           "tokens",
           plan.context, blocks_of(shape, windows, plan.context) * page_bytes, shape.bytes_per_token(), room,
           spill > 0                     ? "set aside in memory and on the disk (kv_memory_bytes, kv_spill)"
           : options.kv_memory_bytes > 0 ? "set aside (kv_memory_bytes)"
                                         : "left beside the weights (kv_memory_bytes overrides)",
           pages_in_room * kPageTokens);
    }
    plan.context = pages_in_room * kPageTokens;
  }
  const std::int64_t blocks =
      options.kv_memory_bytes > 0
          ? blocks_in_room
          : blocks_of(shape, windows, plan.context) + options.max_sequences * (per_page + shape.state_blocks());
  plan.n_blocks = std::min(blocks, kMaxBlocks);
  if (shape.state_bytes == 0) plan.n_blocks = plan.n_blocks / per_page * per_page;  // else states take single blocks
  if (spill > 0 && plan.n_blocks > memory / page_bytes) plan.resident_bytes = memory;
  return plan;
}

}  // namespace mneme
