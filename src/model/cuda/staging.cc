#include "src/model/cuda/staging.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/offload/device_cache_cuda.h"

namespace mneme {
namespace {

// Threads a KV head: more of them slow the GEMMs that run concurrently (docs/design/gather.md).
constexpr std::int32_t kCtasPerHead = 1;

}  // namespace

std::int64_t CudaStaging::bytes(const KvShape& shape, std::int64_t max_context) {
  return 2 * std::int64_t{pages_of(max_context)} * shape.n_kv_heads * static_cast<std::int64_t>(shape.page_bytes());
}

CudaStaging::CudaStaging(const KvShape& shape, std::int64_t max_context) : shape_(shape) {
  for (OwnPages& b : buffers_)
    b = OwnPages(shape, 1, pages_of(max_context), "keys and values of one layer of a prompt");
  for (Round& r : rounds_) r.fetched = Event::make(), r.used = Event::make();
}

void CudaStaging::allocate_kept(std::int64_t free_bytes) {
  const std::int64_t n =
      std::min<std::int64_t>(shape_.n_layers, free_bytes / 4 / static_cast<std::int64_t>(buffers_[0].bytes()));
  try {
    while (std::ssize(kept_) < n)
      kept_.emplace_back(shape_, 1, buffers_[0].tables().max_pages, "keys and values of a prompt");
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kResource) throw;
    kept_.clear();
  }
  kept_tokens_.resize(kept_.size());
  may_keep_ = !kept_.empty();
}

void CudaStaging::select_prompt(std::span<const Earlier> prompts, std::int64_t (*free_bytes)()) {
  const auto keeps = [](const Earlier& e) { return e.revision != 0 && e.first > 0; };
  const Earlier* longest = nullptr;
  for (const Earlier& e : prompts) {
    if (keeps(e) && e.revision == kept_revision_) return;
    if (keeps(e) && (longest == nullptr || e.first > longest->first)) longest = &e;
  }
  if (longest == nullptr || !may_keep_ || free_bytes == nullptr) return;
  if (kept_.empty()) allocate_kept(free_bytes());
  if (!may_keep_) return;
  kept_revision_ = longest->revision;
  std::fill(kept_tokens_.begin(), kept_tokens_.end(), 0);
}

bool CudaStaging::release() {
  may_keep_ = false;
  kept_revision_ = 0;
  kept_tokens_.clear();
  return !std::exchange(kept_, {}).empty();
}

void CudaStaging::fetch(const KvTables& pages, const Earlier& e, const Stream& stream) {
  const std::size_t number = ++fetched_ % 2;
  Round& r = rounds_[number];
  started_.record(stream);  // earlier steps have written tables and pages
  side_.wait(started_);
  // The side stream has written the buffer's content back: end() of two rounds ago precedes this in it.
  const CudaContext context{.stream = side_.get()};
  const auto copy = [&](std::int32_t from, std::int32_t to) {
    copy_pages_cuda({.tables = r.tables}, {pages, e.layer, e.slot}, from, to, kCtasPerHead, context);
    fetched_tokens_ += std::max(to - from, 0);
  };
  if (keeps(e)) {
    r.kept_layer = e.layer;
    r.tables = kept_[static_cast<std::size_t>(e.layer)].tables();
    // A sequence that is cut within its last page keeps its revision: that page is fetched again.
    const std::int32_t kept = std::min(kept_tokens_[static_cast<std::size_t>(e.layer)], e.first);
    copy(std::max(pages_of(kept) - 1, 0) * kPageTokens, e.first);
  } else {
    r.kept_layer = -1;
    r.tables = buffers_[number].tables();
    const std::int32_t head = std::min(whole_pages(e.head), e.first);
    copy(0, head);
    copy(std::max(head, e.from), e.first);
  }
  r.fetched.record(side_);
}

void CudaStaging::begin(const Stream& stream) {
  stream.wait(rounds_[++round_ % 2].fetched);
}

void CudaStaging::end(const KvTables& pages, std::int32_t layer, std::int32_t slot, std::int32_t first,
                      std::int32_t n_tokens, const Stream& stream) {
  const Round& r = rounds_[round_ % 2];
  r.used.record(stream);
  side_.wait(r.used);
  copy_pages_cuda({pages, layer, slot}, {.tables = r.tables}, first, n_tokens, kCtasPerHead, {.stream = side_.get()});
  if (r.kept_layer >= 0) kept_tokens_[static_cast<std::size_t>(r.kept_layer)] = n_tokens;
}

void CudaStaging::join(const Stream& stream) {
  done_.record(side_);
  stream.wait(done_);
}

}  // namespace mneme
