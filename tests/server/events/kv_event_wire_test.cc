#include "src/server/events/kv_event_wire.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "src/kv/page_pool.h"

namespace mneme::server {
namespace {

using nlohmann::json;

std::vector<TokenId> page_of(TokenId first) {
  std::vector<TokenId> tokens(kPageTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(KvEventWire, BytesOfABatchByHand) {
  const std::vector<KvEvent> events = {
      {.kind = KvEvent::Kind::kRemoved, .hashes = {5, 300}, .parent = {}, .tokens = {}}};
  const std::vector<std::uint8_t> bytes = encode_batch(1.5, events);
  // [1.5 (f32), [{"block_hashes": [5, 300], "medium": nil, "type": "BlockRemoved"}], 0]
  std::string expected = "\x93\xca\x3f\xc0";
  expected += std::string("\0\0", 2);
  expected +=
      "\x91\x83\xac"
      "block_hashes"
      "\x92\x05\xcd\x01\x2c"
      "\xa6"
      "medium"
      "\xc0"
      "\xa4"
      "type"
      "\xac"
      "BlockRemoved";
  expected += '\0';
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), expected);
}

TEST(KvEventWire, AStoredBlockHasEveryFieldThatTheRouterWants) {
  std::vector<KvEvent> events;
  const std::vector<TokenId> tokens = page_of(7);
  append_event(events, {.stored = true, .hash = 20, .parent = {}, .tokens = tokens});
  const json batch = json::from_msgpack(encode_batch(2, events));
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[2], 0);
  EXPECT_EQ(batch[1][0], json({{"type", "BlockStored"},
                               {"block_hashes", {10}},
                               {"parent_block_hash", nullptr},
                               {"token_ids", tokens},
                               {"block_size", 32},
                               {"lora_id", nullptr},
                               {"lora_name", nullptr},
                               {"medium", nullptr}}));
}

// A prompt of three pages is one event; a page that follows another one than the last is an event of its own.
TEST(KvEventWire, PagesThatFollowEachOtherAreOneEvent) {
  std::vector<KvEvent> events;
  const std::vector<TokenId> a = page_of(0), b = page_of(100), c = page_of(200);
  append_event(events, {.stored = true, .hash = 2, .parent = {}, .tokens = a});
  append_event(events, {.stored = true, .hash = 4, .parent = 2, .tokens = b});
  append_event(events, {.stored = true, .hash = 6, .parent = 2, .tokens = c});
  append_event(events, {.stored = false, .hash = 6, .parent = {}, .tokens = {}});
  append_event(events, {.stored = false, .hash = 4, .parent = {}, .tokens = {}});
  append_event(events, {.stored = true, .hash = 4, .parent = 2, .tokens = b});
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].hashes, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(events[0].tokens.size(), 64u);
  EXPECT_FALSE(events[0].parent);
  EXPECT_EQ(events[1].parent, 1u);
  EXPECT_EQ(events[2].hashes, (std::vector<std::uint64_t>{3, 2}));
  EXPECT_EQ(events[3].kind, KvEvent::Kind::kStored);
}

TEST(KvEventWire, HashesArePositiveAsSignedNumbers) {
  std::vector<KvEvent> events;
  append_event(events, {.stored = false, .hash = ~std::uint64_t{0}, .parent = {}, .tokens = {}});
  EXPECT_EQ(events[0].hashes[0], 0x7fffffffffffffffu);
}

TEST(KvEventWire, SequenceNumbersBothWays) {
  EXPECT_EQ(encode_sequence(258), (std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 1, 2}));
  EXPECT_EQ(encode_sequence(-1), std::vector<std::uint8_t>(8, 0xff));
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40})
    EXPECT_EQ(decode_sequence(encode_sequence(n)), n);
  EXPECT_FALSE(decode_sequence(std::vector<std::uint8_t>(7)));
}

}  // namespace
}  // namespace mneme::server
