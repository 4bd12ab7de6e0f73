// Keys and values of some layers and sequences on the device, in pages of their own: block i is number i of the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/memory.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/kv/page_pool.h"

namespace mneme {

inline std::int32_t whole_pages(std::int32_t n_tokens) {
  return pages_of(n_tokens) * kPageTokens;
}

class OwnPages {
 public:
  OwnPages() = default;
  // n pairs of a layer and a sequence, consecutive, of max_pages pages a KV head; 0: tables without memory.
  // Errors  kResource: the message has `what`.
  OwnPages(const KvShape& shape, std::int64_t n, std::int32_t max_pages, const char* what);

  const KvTables& tables() const { return tables_; }
  std::int64_t tokens_a_head() const { return std::int64_t{tables_.max_pages} * kPageTokens; }
  std::size_t bytes() const { return memory_.size() + blocks_.size(); }

 private:
  DeviceBuffer memory_, blocks_;
  KvTables tables_;
};

// `one`, tables of one layer of one sequence, with the holes and positions of `from`. Requires  pages as many as there.
KvTables with_holes_of(const LayerPages& from, KvTables one);

}  // namespace mneme
