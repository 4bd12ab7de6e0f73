#include "src/kv/block_copy.h"

#include <cstring>

namespace mneme {

void copy_blocks(std::byte* pool, std::byte* host, std::span<const BlockPlace> places, std::size_t block_bytes,
                 BlocksGo go) {
  for (const BlockPlace& p : places) {
    std::byte *const block = pool + p.block * block_bytes, *const place = host + p.place * block_bytes;
    go == BlocksGo::kOut ? std::memcpy(place, block, block_bytes) : std::memcpy(block, place, block_bytes);
  }
}

}  // namespace mneme
