// Page tables on the device: for every (sequence, layer, KV head) the block of each page, 32 x [K: D | V: D]
// (src/kv/page_pool.h); in 8 bits two scales follow (kv_quant.h). With of_tokens, an entry is one token's [K | V].
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/cuda/host_device.h"
#include "src/tensor/dtype.h"

namespace mneme {

inline constexpr std::int32_t kKvPageTokens = 32;  // kPageTokens of page_pool.h, which device code does not include

// Keys and values as codes with a scale a row, read as bf16 (kv_quant.h); kNone: in 16 bits.
enum class KvCodes : std::uint8_t { kNone, kInt8, kFp8 };

inline KvCodes kv_codes_of(DType kv_dtype) {
  return kv_dtype == DType::kInt8 ? KvCodes::kInt8 : kv_dtype == DType::kFp8 ? KvCodes::kFp8 : KvCodes::kNone;
}
// Bytes of one token's keys and values of a KV head.
MNEME_HOST_DEVICE constexpr std::int32_t kv_token_bytes(KvCodes codes, std::int32_t head_dim) {
  return codes == KvCodes::kNone ? 4 * head_dim : 2 * head_dim + 8;
}

struct KvTables {
  std::byte* base = nullptr;         // address of block 0
  std::int32_t* blocks = nullptr;    // device [sequences][layers * KV heads][max_pages]
  std::int64_t sequence_stride = 0;  // entries: layers * KV heads * max_pages
  std::int32_t max_pages = 0;
  std::int32_t n_kv_heads = 0, head_dim = 0;
  bool f16 = false;  // else bf16, which 8 bits are read as
  KvCodes codes = KvCodes::kNone;
  bool of_tokens = false;  // entries are tokens, max_pages counts tokens; decode attention alone accepts this
  // Heads that read one KV head here, in kernels over cache slots alone: DeviceCache::shared.
  std::int32_t shared_by = 1;

  // For sequences that dropped tokens head by head: pages have holes, and heads differ in their number of pages. Null:
  // no sequence of the step dropped any.
  //   shifts  [sequences][layers * KV heads]: position minus index in the table, for new tokens
  //   masks   [sequences][layers * KV heads][max_pages]: bit i is set if token i of the page is stored; bits behind the
  //           last token are set
  const std::int32_t* shifts = nullptr;
  const std::uint32_t* masks = nullptr;
  std::int32_t shift_stride = 0;  // entries per sequence

  std::size_t token_bytes() const { return static_cast<std::size_t>(kv_token_bytes(codes, head_dim)); }
};

// One layer of one sequence in page tables.
struct LayerPages {
  KvTables tables;
  std::int32_t layer = 0, slot = 0;
};

// blocks[at] = value for each of n updates.   updates [n] on the device
struct TableUpdate {
  std::int64_t at;
  std::int64_t value;
};
void update_tables_cuda(std::int32_t* blocks, const TableUpdate* updates, std::int64_t n, const CudaContext& context);

}  // namespace mneme
