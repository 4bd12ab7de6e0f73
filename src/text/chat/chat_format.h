// The framing of chat turns: by the model's chat template, or by hand for the families that are recognised by the
// marker tokens that their template names. What users write is always encoded without special tokens, so it cannot
// forge a turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/chat_template.h"
#include "src/tokenizer/tokenizer.h"

namespace mneme {

enum class ChatFamily : std::uint8_t { kNone, kLlama3, kChatMl, kMistral, kDeepseekR1, kNeedle };
std::string_view chat_family_name(ChatFamily f);

class ChatFormat {
 public:
  // kNone where the template is empty or names no family that we know, or the vocabulary lacks the family's tokens:
  // turns are then plain text.
  //
  // The template frames all turns where it can be read and shows what the user says; the shipped model's first turn is
  // not as its template has it, so that family keeps its own framing.
  //
  // Requires  the tokenizer outlives the format.
  static ChatFormat detect(const Tokenizer& tokenizer);
  // With a template of the user's choice.
  //
  // Errors  kFormat, kRequest: it cannot be read, or does not show what the user says.
  static ChatFormat with_template(const Tokenizer& tokenizer, std::string source);

  ChatFamily family() const { return family_; }
  // Null where turns are framed by hand; template_problem() then says why the model's own template is not used (empty:
  // it has none, or the family has its own framing).
  const ChatTemplate* chat_template() const { return template_.get(); }
  const std::string& template_problem() const { return problem_; }

  // All of a conversation, up to where the next answer begins.
  //
  // Requires  chat_template() != nullptr.
  // Errors    kRequest: what the template says against the conversation.
  std::vector<TokenId> conversation(const ChatInput& input) const;

  struct Turn {
    std::string_view document;  // may be empty; `document \n\n\n question` when both are there
    std::string_view question;  // may be empty
    std::string_view system;    // first turn only; families without a system role put it before the document
  };
  // Ids of one user turn up to where the assistant's answer begins. The first turn includes beginning-of-sequence and,
  // where the family has one, the system turn; a later one follows the token that ended the answer before it
  // (end_of_answer()). docs/tokenizers.md has every family's framing.
  //
  // Errors  as Tokenizer::encode.
  std::vector<TokenId> user_turn(const Turn& turn, bool first) const;
  // The same in two pieces, for feeding the question apart from the document: everything up to the end of the document,
  // and the rest, which begins with the `\n\n\n` between them. Joined they are user_turn() of the same text, except
  // that no token spans the seam. Without a document the first piece ends where the question's text begins.
  struct SplitTurn {
    std::vector<TokenId> document, question;
  };
  SplitTurn user_turn_split(const Turn& turn, bool first) const;
  // Ids that close an answer which the engine stopped early, so that another turn may follow.
  std::vector<TokenId> end_of_answer() const;

 private:
  // The tokens that frame a family's turns; absent ones are written as text.
  struct Marks {
    std::optional<TokenId> bos, open, close, user, assistant, end, think;
  };
  // How [INST] is written: it was text first, then a token, with and without spaces, and Llama 2 had <<SYS>>.
  struct MistralStyle {
    bool space_after_open = true, space_before_close = true, llama2_system = false;
  };
  class Writer;
  struct Rendered;  // a turn by the template

  ChatFormat(const Tokenizer& tokenizer, ChatFamily family);
  void use_template(std::string source);
  Rendered render_turn(const Turn& turn, bool first) const;
  SplitTurn template_turn(const Turn& turn, bool first, bool split) const;
  void write_turn(Writer& out, const Turn& turn, bool first) const;
  void write_llama3(Writer& out, Turn turn, bool first) const;
  void write_chatml(Writer& out, const Turn& turn, bool first) const;
  void write_mistral(Writer& out, const Turn& turn, bool first) const;
  void write_deepseek(Writer& out, const Turn& turn, bool first) const;
  void write_needle(Writer& out, const Turn& turn, bool first) const;
  void write_plain(Writer& out, const Turn& turn, bool first) const;

  const Tokenizer* tokenizer_;
  ChatFamily family_;
  Marks marks_;
  MistralStyle mistral_;
  std::shared_ptr<const ChatTemplate> template_;
  std::string problem_;
  std::vector<TokenId> end_of_answer_;  // by the template
};

}  // namespace mneme
