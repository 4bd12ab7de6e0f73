// The framing of chat turns for the model families we know, recognised by the marker tokens that their template names.
// User text is always encoded without special tokens, so it cannot forge a turn. A template engine comes with the server.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/tokenizer.h"

namespace mneme {

enum class ChatFamily : std::uint8_t { kNone, kLlama3, kChatMl, kMistral, kDeepseekR1, kNeedle };
std::string_view chat_family_name(ChatFamily f);

class ChatFormat {
 public:
  // kNone where the template is empty or names no family that we know: turns are then plain text.
  static ChatFormat detect(const Tokenizer& tokenizer);

  ChatFamily family() const { return family_; }

  struct Turn {
    std::string_view document;  // may be empty; `document \n\n\n question` when both are there
    std::string_view question;  // may be empty
    std::string_view system;    // first turn only; families without a system role put it before the document
  };
  // Ids of one user turn up to where the assistant's answer begins. The first turn includes beginning-of-sequence and, where
  // the family has one, the system turn.
  std::vector<TokenId> user_turn(const Turn& turn, bool first) const;
  // The same in two pieces, for feeding the question apart from the document: everything up to the end of the document, and the rest.
  // Joined they are user_turn() of the same text, except that no token spans the seam.
  struct SplitTurn {
    std::vector<TokenId> document, question;
  };
  SplitTurn user_turn_split(const Turn& turn, bool first) const;
  // Ids that close an answer which the engine stopped early, so that another turn may follow.
  std::vector<TokenId> end_of_answer() const;

 private:
  ChatFormat(const Tokenizer& tokenizer, ChatFamily family) : tokenizer_(&tokenizer), family_(family) {}
  const Tokenizer* tokenizer_;
  ChatFamily family_;
};

}  // namespace mneme
