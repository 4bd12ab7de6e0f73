// An answer as the items that Responses and Messages have: thoughts, texts and calls, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/server/answer/chat_answer.h"

namespace mneme::server {

enum class ItemKind : std::uint8_t { kThought, kText, kCall };

struct AnswerItem {
  ItemKind kind = ItemKind::kText;
  std::string text;                // of a call its arguments
  std::string id, name;            // of a call
  std::vector<TokenScore> tokens;  // of a text
  bool cut = false;                // the answer ended in it
};

class AnswerItems {
 public:
  // What happened to an item. One item is open at a time.
  struct Change {
    enum What : std::uint8_t { kOpened, kGrew, kClosed } what;
    std::size_t item;
    std::string text;                // kGrew: by this
    std::vector<TokenScore> tokens;  // kGrew: a text's
  };
  // Appends to `changes` what a piece of the answer changes.
  void take(ChatAnswer::Piece piece, std::vector<Change>& changes);
  // The answer ends with these pieces. `cut`: not by itself, but within the item that is open. An answer of nothing is
  // an empty text: clients read the first item.
  void finish(std::vector<ChatAnswer::Piece> last, bool cut, std::vector<Change>& changes);

  const std::vector<AnswerItem>& items() const { return items_; }
  bool has_calls() const;

 private:
  AnswerItem& open(ItemKind kind, std::vector<Change>& changes);
  void close(std::vector<Change>& changes);

  std::vector<AnswerItem> items_;
  bool open_ = false;
};

}  // namespace mneme::server
