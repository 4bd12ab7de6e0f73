// KV-cache events as bytes: MessagePack in vLLM's form, which vllm-router and llm-d read.
//
//   batch  [seconds since 1970, [event, ...], rank]
//   event  {"type": "BlockStored", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
//           "lora_name"}, {"type": "BlockRemoved", "block_hashes", "medium"} or {"type": "AllBlocksCleared"}
//
// Source  vllm-router 0.1.17: it refuses events as arrays, a batch as a map, and stored blocks without "lora_name".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/engine/loop/prefix_cache.h"

namespace mneme::server {

struct KvEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kCleared;
  std::vector<std::uint64_t> hashes;    // of blocks: each of the tokens so far; positive as signed numbers too
  std::optional<std::uint64_t> parent;  // kStored: of the block before the first
  std::vector<TokenId> tokens;          // kStored: of all blocks, kPageTokens each
};

// Appends the event of a page. A page that follows the last event's becomes part of it: a prompt is one event.
void append_event(std::vector<KvEvent>& events, const PageEvent& page);

std::vector<std::uint8_t> encode_batch(double seconds, std::span<const KvEvent> events);

// 8 bytes, the most significant first.
std::vector<std::uint8_t> encode_sequence(std::int64_t number);
// Nothing: not 8 bytes.
std::optional<std::int64_t> decode_sequence(std::span<const std::uint8_t> bytes);

}  // namespace mneme::server
