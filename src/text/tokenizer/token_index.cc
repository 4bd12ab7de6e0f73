#include "src/text/tokenizer/token_index.h"

#include <algorithm>
#include <bit>

#include "src/base/size32.h"

namespace mneme {

TokenIndex::TokenIndex(const std::vector<std::string>& texts, std::size_t expected)
    : texts_(&texts), slots_(std::bit_ceil(std::max<std::size_t>(16, 2 * expected))) {}

std::size_t TokenIndex::slot_of(std::string_view text, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = (hash >> 32) & mask;
  while (slots_[at].id >= 0) {
    const Slot& slot = slots_[at];
    if (slot.hash == static_cast<std::uint32_t>(hash) && (*texts_)[slot.id] == text) break;
    at = (at + 1) & mask;
  }
  return at;
}

void TokenIndex::add(TokenId id) {
  const std::string& text = (*texts_)[id];
  const std::uint64_t hash = hash_text(text);
  Slot& slot = slots_[slot_of(text, hash)];
  if (slot.id < 0) slot = {static_cast<std::uint32_t>(hash), id};
}

TokenId TokenIndex::find(std::string_view text) const {
  return slots_[slot_of(text, hash_text(text))].id;
}

TokenIndex index_of_all(const std::vector<std::string>& texts) {
  TokenIndex index(texts, texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) index.add(count32(i));
  return index;
}

}  // namespace mneme
