#include "src/server/reply/answer_items.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mneme::server {

void AnswerItems::close(std::vector<Change>& changes) {
  if (std::exchange(open_, false))
    changes.push_back({.what = Change::kClosed, .item = items_.size() - 1, .text = {}, .tokens = {}});
}

AnswerItem& AnswerItems::open(ItemKind kind, std::vector<Change>& changes) {
  close(changes);
  items_.push_back({.kind = kind, .text = {}, .id = {}, .name = {}, .tokens = {}});
  open_ = true;
  return items_.back();
}

void AnswerItems::take(ChatAnswer::Piece piece, std::vector<Change>& changes) {
  AnswerEvent& e = piece.event;
  const auto opened = [&] {
    changes.push_back({.what = Change::kOpened, .item = items_.size() - 1, .text = {}, .tokens = {}});
  };
  switch (e.part) {
    case AnswerPart::kCallBegin: {
      AnswerItem& call = open(ItemKind::kCall, changes);
      call.id = e.id;
      call.name = e.text;
      return opened();
    }
    case AnswerPart::kCallEnd:
      return close(changes);
    case AnswerPart::kThought:
    case AnswerPart::kText: {
      const ItemKind kind = e.part == AnswerPart::kThought ? ItemKind::kThought : ItemKind::kText;
      if (open_ && items_.back().kind == kind) break;
      if (e.text.empty()) return;
      open(kind, changes);
      opened();
      break;
    }
    case AnswerPart::kArguments:
      break;
  }
  AnswerItem& item = items_.back();
  item.text += e.text;
  item.tokens.insert(item.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  changes.push_back(
      {.what = Change::kGrew, .item = items_.size() - 1, .text = std::move(e.text), .tokens = std::move(piece.tokens)});
}

void AnswerItems::finish(std::vector<ChatAnswer::Piece> last, bool cut, std::vector<Change>& changes) {
  // The parser closes a call that the answer's end cuts.
  const bool within = open_ || !last.empty();
  for (ChatAnswer::Piece& piece : last) take(std::move(piece), changes);
  if (items_.empty()) {
    open(ItemKind::kText, changes);
    changes.push_back({.what = Change::kOpened, .item = 0, .text = {}, .tokens = {}});
  }
  close(changes);
  if (cut && within && !items_.empty()) items_.back().cut = true;
}

bool AnswerItems::has_calls() const {
  return std::any_of(items_.begin(), items_.end(), [](const AnswerItem& i) { return i.kind == ItemKind::kCall; });
}

}  // namespace mneme::server
