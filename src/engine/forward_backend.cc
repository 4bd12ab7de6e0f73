#include "src/engine/forward_backend.h"

#include "src/base/error.h"

namespace mneme {

void check_device_options(const EngineOptions& options) {
  if (options.device != Device::kCuda) return;
  if (options.speculation.on())
    fail(
        ErrorKind::kOption,
        "speculative {}: expected --device cpu, found cuda: its attention would read the KV cache once for each draft; "
        "leave it out",
        speculation_text(options.speculation));
  if (!options.deterministic) return;
  // GEMMs of a prompt have 256 rows (kInvariantRows), graphs of a step 64.
  constexpr std::int32_t kLeastTokens = 256, kMaxSequences = 64;
  if (options.max_batched_tokens < kLeastTokens)
    fail(ErrorKind::kOption,
         "--deterministic with --device cuda: expected --max-num-batched-tokens of at least {}, found {}", kLeastTokens,
         options.max_batched_tokens);
  if (options.max_sequences > kMaxSequences)
    fail(ErrorKind::kOption, "--deterministic with --device cuda: expected --max-num-seqs of at most {}, found {}",
         kMaxSequences, options.max_sequences);
}

}  // namespace mneme
