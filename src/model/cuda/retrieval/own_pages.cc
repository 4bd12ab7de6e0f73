#include "src/model/cuda/retrieval/own_pages.h"

#include <numeric>
#include <vector>

#include "src/base/check.h"

namespace mneme {

OwnPages::OwnPages(const KvShape& shape, std::int64_t n, std::int32_t max_pages, const char* what)
    : tables_{.sequence_stride = std::int64_t{shape.n_kv_heads} * max_pages,
              .max_pages = max_pages,
              .n_kv_heads = shape.n_kv_heads,
              .head_dim = shape.head_dim,
              .f16 = shape.dtype == DType::kF16,
              .codes = kv_codes_of(shape.dtype)} {
  if (n == 0) return;
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(n * tables_.sequence_stride));
  std::iota(numbers.begin(), numbers.end(), 0);
  memory_ = DeviceBuffer(numbers.size() * shape.page_bytes(), what);
  blocks_ = DeviceBuffer(numbers.size() * sizeof(std::int32_t), "tables of pages");
  const Stream stream = Stream::make();
  copy_bytes(blocks_.data(), numbers.data(), blocks_.size(), stream);
  stream.synchronize();
  tables_.base = memory_.data(), tables_.blocks = blocks_.as<std::int32_t>();
}

KvTables with_holes_of(const LayerPages& from, KvTables one) {
  const KvTables& t = from.tables;
  if (t.masks == nullptr) return one;
  MNEME_CHECK(t.max_pages == one.max_pages, "{} and {} pages", t.max_pages, one.max_pages);
  const std::int64_t heads = std::int64_t{from.layer} * t.n_kv_heads;
  one.masks = t.masks + from.slot * t.sequence_stride + heads * t.max_pages;
  one.shifts = t.shifts + std::int64_t{from.slot} * t.shift_stride + heads;
  return one;
}

}  // namespace mneme
