// Selection of tokens by their 1-bit keys in two kernels over the whole device, for any number of sequences: the scan
// writes scores (token_scan_cuda.cu), and one cluster of thread blocks per KV head selects from them
// (token_select_cuda.cu).
//
// A single kernel with the scores in shared memory took 34 us instead of 36 for 32,768 tokens of 32 KV heads, but made
// a step 2 % longer: fewer clusters of such large blocks fit beside the other kernels.
#include <algorithm>

#include "src/selection/topk/head_terms.cuh"
#include "src/selection/topk/token_selection_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda::tokens;  // NOLINT

constexpr std::size_t kScratchBytes = std::size_t{64} << 20;  // more rows than fit take several launches

// Scratch of a launch: arrays, one after the other.
struct Layout {
  std::int64_t width, parts, items;
  std::int32_t rows;  // per launch
  int group;
  Layout(const DeviceCache& s, std::int32_t n_rows) : group(s.n_heads / s.n_kv_heads) {
    const std::int64_t tokens = std::int64_t{s.max_pages} * kKvPageTokens + kStage;
    width = (tokens + kStage - 1) / kStage * kStage;
    // A block has at least as many stages as warps, so a head's stages are in at most this many blocks plus two.
    parts = width / kStage + 2 * kScanWarps;
    items = s.n_kv_heads;
    const auto fit = static_cast<std::int64_t>(kScratchBytes / bytes());
    rows = static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, 1, std::min(std::max(n_rows, 1), kMaxRows)));
    items *= rows;
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(items * (rows_of_scores() * width * 4 + group * parts * 16 + 16));
  }
  int rows_of_scores() const { return group == 1 ? 1 : group + 2; }  // and pooled for this step and the next
  void seq_slot(std::byte* at, SelectWhen when, TokenArgs& a) const {
    a.scores = reinterpret_cast<float*>(at);
    const int pooled = group == 1 ? 0 : when == SelectWhen::kNow ? group : group + 1;
    a.pooled = a.scores + pooled * items * width;
    a.partial = reinterpret_cast<float4*>(a.scores + rows_of_scores() * items * width);
    a.n_parts = reinterpret_cast<int*>(a.partial + items * group * parts);
  }
};

template <typename F>
void for_rows(const SelectTokens& c, const DeviceCache& s, std::int32_t slot_layer, const Layout& layout, F&& run) {
  TokenArgs a{};
  a.s = cuda::of_layer(s, slot_layer);
  a.early = c.early, a.lists = c.pages != nullptr;
  if (a.lists) a.pages = *c.pages, a.model_layer = c.layer;
  a.layer = slot_layer;
  a.group = layout.group;
  a.max_parts = static_cast<int>(layout.parts);
  a.width = layout.width;
  layout.seq_slot(c.scratch, c.when, a);
  for (std::int32_t first = 0; first < c.rows.n; first += layout.rows) {
    a.rows = {c.rows.seq_slots + first, c.rows.lengths + first, c.rows.reset + first,
              std::min(layout.rows, c.rows.n - first)};
    if (c.sketch_terms != nullptr)
      a.terms = static_cast<cuda::HeadTerms*>(c.sketch_terms) + first * s.n_kv_heads * layout.group;
    a.terms_of_scan = c.terms_of_scan;
    run(a);
  }
}

}  // namespace

std::size_t select_tokens_scratch_bytes(const DeviceCache& s, std::int32_t n_rows) {
  return Layout(s, n_rows).bytes();
}

void select_tokens_cuda(const SelectTokens& c, const DeviceCache& s, std::int32_t slot_layer,
                        const CudaContext& context) {
  const Layout layout(s, c.rows.n);
  const bool now = c.when == SelectWhen::kNow, lists = c.pages != nullptr,
             at_once = layout.rows >= c.rows.n;  // else scores of some rows overwrite others'
  if (!now && (lists || !at_once)) return;
  for_rows(c, s, slot_layer, layout, [&](const TokenArgs& a) {
    if (now) scan(a, context);
    select(a, c.when, context);
    if (!lists && !at_once) select(a, SelectWhen::kNext, context);
  });
}

void scan_tokens_cuda(const SelectTokens& c, const DeviceCache& s, std::int32_t slot_layer,
                      const CudaContext& context) {
  for_rows(c, s, slot_layer, Layout(s, c.rows.n), [&](const TokenArgs& a) { scan(a, context); });
}

}  // namespace mneme
