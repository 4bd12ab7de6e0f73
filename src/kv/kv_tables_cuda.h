// Where keys and values of sequences lie on the device: for every (sequence, layer, KV head) a table of slots, each a
// page's block of 32 x [K: D | V: D] (src/cache/page_pool.h), or of_tokens: one token's [K: D | V: D].
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda_context.h"

namespace mneme {

inline constexpr std::int32_t kKvPageTokens = 32;  // kPageTokens of the cache room, which comes after this one

struct KvTables {
  std::byte* base = nullptr;         // block 0
  std::int32_t* blocks = nullptr;    // device [sequences][layers * KV heads][max_pages]
  std::int64_t sequence_stride = 0;  // entries: layers * KV heads * max_pages
  std::int32_t max_pages = 0;
  std::int32_t n_kv_heads = 0, head_dim = 0;
  bool f16 = false;        // else bf16
  bool of_tokens = false;  // entries are tokens, and max_pages counts these; decode attention alone knows such tables

  // Of sequences that dropped tokens, each head by itself: pages have holes, and a head fewer pages than others. Null:
  // no sequence that is asked for did.
  //   shifts  [sequences][layers * KV heads]: what a new token's position is beyond its slot
  //   masks   as blocks, a bit a slot of the page: it holds a token; ones behind the last token
  const std::int32_t* shifts = nullptr;
  const std::uint32_t* masks = nullptr;
  std::int32_t shift_stride = 0;  // of a sequence

  std::size_t token_bytes() const { return 4 * static_cast<std::size_t>(head_dim); }
};

// tables[at[i]] = value[i].   updates [n] on the device.
struct TableUpdate {
  std::int64_t at;
  std::int64_t value;
};
void update_tables_cuda(std::int32_t* blocks, const TableUpdate* updates, std::int64_t n, const CudaContext& context);

}  // namespace mneme
