// The tokens of answers, for conversations that come back with them.
//
// A chat template renders an earlier answer from its parts: the white space of a call's arguments and the tokens of a
// text may differ from what the model wrote, and the prefix cache would end there. What means the same is replaced by
// the tokens that the model wrote.
//
// Threads  any.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/engine/answer/answer_piece.h"
#include "src/server/answer/chat_answer.h"

namespace mneme::server {

class AnswerMemory {
 public:
  // Keeps answers of at most so many tokens together; the ones used least recently go first.
  explicit AnswerMemory(std::size_t most_tokens) : most_tokens_(most_tokens) {}

  // Names the place of an answer by the prompt before it.
  using Place = std::uint64_t;
  static Place place_of(std::string_view salt, const std::vector<TokenId>& prompt);
  // `answer`: without the token that ended it.
  void remember(Place place, std::vector<TokenId> answer);

  // `prompt` with the model's own tokens in its answers. An answer reaches from where one is remembered to the next
  // token that ends answers. `reading`: how answers are read; null: they are their text.
  std::vector<TokenId> with_own_tokens(std::string_view salt, const std::vector<TokenId>& prompt,
                                       const AnswerReading* reading, const Tokenizer& tokenizer);

 private:
  struct Entry {
    Place place;
    std::vector<TokenId> tokens;
  };
  using Entries = std::list<Entry>;
  void use(Entries::iterator entry) { entries_.splice(entries_.begin(), entries_, entry); }
  void drop_last();

  std::size_t most_tokens_, tokens_ = 0;
  std::mutex mutex_;
  Entries entries_;  // the one used last comes first
  std::unordered_multimap<Place, Entries::iterator> by_place_;
};

// Collects one answer's tokens for the memory.
class AnswerRecord {
 public:
  AnswerRecord() = default;  // remembers nothing
  AnswerRecord(AnswerMemory& memory, AnswerMemory::Place place) : memory_(&memory), place_(place) {}
  // Only an answer that the model ended is remembered: of another the client may send back something else.
  void take(const AnswerPiece& piece);

 private:
  AnswerMemory* memory_ = nullptr;
  AnswerMemory::Place place_ = 0;
  std::vector<TokenId> tokens_;
};

}  // namespace mneme::server
