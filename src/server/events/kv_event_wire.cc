#include "src/server/events/kv_event_wire.h"

#include <nlohmann/json.hpp>

#include "src/kv/page_pool.h"

namespace mneme::server {
namespace {

using Json = nlohmann::json;

// Readers take hashes as signed or as unsigned numbers: 63 bits are both.
std::uint64_t wire_hash(std::uint64_t hash) {
  return hash >> 1;
}

Json event_json(const KvEvent& event) {
  Json json;
  switch (event.kind) {
    case KvEvent::Kind::kStored:
      json["type"] = "BlockStored";
      json["block_hashes"] = event.hashes;
      json["parent_block_hash"] = event.parent ? Json(*event.parent) : Json();
      json["token_ids"] = event.tokens;
      json["block_size"] = kPageTokens;
      json["lora_id"] = nullptr;
      json["lora_name"] = nullptr;
      json["medium"] = nullptr;
      break;
    case KvEvent::Kind::kRemoved:
      json["type"] = "BlockRemoved";
      json["block_hashes"] = event.hashes;
      json["medium"] = nullptr;
      break;
    case KvEvent::Kind::kCleared:
      json["type"] = "AllBlocksCleared";
      break;
  }
  return json;
}

}  // namespace

void append_event(std::vector<KvEvent>& events, const PageEvent& page) {
  const std::uint64_t hash = wire_hash(page.hash);
  if (!page.stored) {
    if (events.empty() || events.back().kind != KvEvent::Kind::kRemoved)
      events.push_back({.kind = KvEvent::Kind::kRemoved, .hashes = {}, .parent = {}, .tokens = {}});
    events.back().hashes.push_back(hash);
    return;
  }
  std::optional<std::uint64_t> parent;
  if (page.parent) parent = wire_hash(*page.parent);
  const bool follows = !events.empty() && events.back().kind == KvEvent::Kind::kStored && parent &&
                       events.back().hashes.back() == *parent;
  if (!follows) events.push_back({.kind = KvEvent::Kind::kStored, .hashes = {}, .parent = parent, .tokens = {}});
  KvEvent& event = events.back();
  event.hashes.push_back(hash);
  event.tokens.insert(event.tokens.end(), page.tokens.begin(), page.tokens.end());
}

std::vector<std::uint8_t> encode_batch(double seconds, std::span<const KvEvent> events) {
  Json list = Json::array();
  for (const KvEvent& event : events) list.push_back(event_json(event));
  return Json::to_msgpack(Json::array({seconds, std::move(list), 0}));
}

std::vector<std::uint8_t> encode_sequence(std::int64_t number) {
  std::vector<std::uint8_t> bytes(8);
  auto bits = static_cast<std::uint64_t>(number);
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte, bits >>= 8) *byte = bits & 0xff;
  return bytes;
}

std::optional<std::int64_t> decode_sequence(std::span<const std::uint8_t> bytes) {
  if (bytes.size() != 8) return std::nullopt;
  std::uint64_t bits = 0;
  for (const std::uint8_t byte : bytes) bits = bits << 8 | byte;
  return static_cast<std::int64_t>(bits);
}

}  // namespace mneme::server
