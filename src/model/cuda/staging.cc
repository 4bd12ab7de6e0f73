#include "src/model/cuda/staging.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "src/model/cuda/retrieval/retrieval.h"
#include "src/offload/device_cache_cuda.h"

namespace mneme {
namespace {

// Threads a KV head: more of them slow the GEMMs that run concurrently (docs/design/gather.md).
constexpr std::int32_t kCtasPerHead = 1;

}  // namespace

std::int64_t CudaStaging::bytes(const KvShape& shape, std::int64_t max_context) {
  return 2 * std::int64_t{pages_of_tokens(max_context)} * shape.n_kv_heads *
         static_cast<std::int64_t>(shape.page_bytes());
}

CudaStaging::CudaStaging(const KvShape& shape, std::int64_t max_context) {
  const std::int32_t pages = pages_of_tokens(max_context);
  std::vector<std::int32_t> same(static_cast<std::size_t>(pages) * static_cast<std::size_t>(shape.n_kv_heads));
  std::iota(same.begin(), same.end(), 0);
  blocks_ = DeviceBuffer(same.size() * sizeof(std::int32_t), "tables of a prompt's layer");
  copy_bytes(blocks_.data(), same.data(), blocks_.size(), side_);
  side_.synchronize();
  for (OneBuffer& b : buffers_) {
    b.memory = DeviceBuffer(same.size() * shape.page_bytes(), "keys and values of one layer of a prompt");
    b.tables = {.base = b.memory.data(),
                .blocks = blocks_.as<std::int32_t>(),
                .sequence_stride = static_cast<std::int64_t>(same.size()),
                .max_pages = pages,
                .n_kv_heads = shape.n_kv_heads,
                .head_dim = shape.head_dim,
                .f16 = shape.dtype == DType::kF16,
                .codes = kv_codes_of(shape.dtype)};
    b.fetched = Event::make();
    b.used = Event::make();
  }
}

void CudaStaging::fetch(const KvTables& pages, const Earlier& e, const Stream& stream) {
  const OneBuffer& b = buffers_[++fetched_ % 2];
  started_.record(stream);  // earlier steps have written tables and pages
  side_.wait(started_);
  // The side stream has written the buffer's content back: end() of two rounds ago precedes this in it.
  const CudaContext context{.stream = side_.get()};
  const std::int32_t head = std::min(pages_of_tokens(e.head) * kPageTokens, e.first);
  copy_positions_cuda(b.tables, 0, pages, e.layer, 0, e.slot, 0, head, kCtasPerHead, context);
  copy_positions_cuda(b.tables, 0, pages, e.layer, 0, e.slot, std::max(head, e.from), e.first, kCtasPerHead, context);
  b.fetched.record(side_);
}

void CudaStaging::begin(const Stream& stream) {
  stream.wait(buffers_[++round_ % 2].fetched);
}

void CudaStaging::end(const KvTables& pages, std::int32_t layer, std::int32_t slot, std::int32_t first,
                      std::int32_t n_tokens, const Stream& stream) {
  const OneBuffer& b = buffers_[round_ % 2];
  b.used.record(stream);
  side_.wait(b.used);
  copy_positions_cuda(pages, layer, b.tables, 0, slot, 0, first, n_tokens, kCtasPerHead, {.stream = side_.get()});
}

void CudaStaging::join(const Stream& stream) {
  done_.record(side_);
  stream.wait(done_);
}

}  // namespace mneme
