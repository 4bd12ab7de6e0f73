// Framing of chat turns: by the model's chat template, or by hand for families recognised by the marker tokens in their
// template. User text is always encoded without special tokens, so it cannot forge a turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/chat/chat_template.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

enum class ChatFamily : std::uint8_t { kNone, kLlama3, kChatMl, kMistral, kDeepseekR1, kNeedle };
std::string_view chat_family_name(ChatFamily f);

class ChatFormat {
 public:
  // kNone where the template is empty or names no known family, or the vocabulary lacks the family's tokens: turns are
  // then plain text.
  //
  // The template frames all turns where it can be parsed and renders what the user says. The shipped model's first turn
  // differs from its template, so that family is framed by hand.
  //
  // Requires  the tokenizer outlives the format.
  static ChatFormat detect(const Tokenizer& tokenizer);
  // With a template given by the user: Jinja, or the name of one of the model's templates.
  //
  // Errors  kFormat, kRequest: it cannot be parsed, or does not render what the user says; no such name.
  static ChatFormat with_template(const Tokenizer& tokenizer, std::string source);

  ChatFamily family() const { return family_; }
  // What frames the turns, for reports: the family, or "template" for a template given by the user.
  std::string_view name() const { return users_template_ ? "template" : chat_family_name(family_); }
  // The default one. Null where turns are framed by hand; template_problem() then says why the model's template is not
  // used (empty: it has none, or the family is framed by hand).
  const ChatTemplate* chat_template() const { return template_.get(); }
  const std::string& template_problem() const { return problem_; }

  // Models may have several templates by name. A conversation with tools takes "tool_use" where there is one, as in
  // transformers; a user's own template is for all. `name`: that one ("default": chat_template()).
  //
  // Errors  kFormat: it cannot be parsed.
  const ChatTemplate* template_for(bool tools, std::string_view name) const;
  bool has_template(std::string_view name) const;
  std::vector<std::string> template_names() const;

  // Tokens of a whole conversation, up to the start of the next answer, or to where the last message's content ends
  // (ChatInput::continue_final_message).
  //
  // Requires  template_for() != nullptr.
  // Errors    kRequest: the template rejects the conversation, or leaves out the message to continue.
  std::vector<TokenId> conversation(const ChatInput& input) const;

  struct Turn {
    std::string_view document;  // may be empty; `document \n\n\n question` when both are given
    std::string_view question;  // may be empty
    std::string_view system;    // first turn only; families without a system role put it before the document
  };
  // Ids of one user turn up to the start of the assistant's answer. The first turn includes beginning-of-sequence and,
  // where the family has one, the system turn. A later turn follows the token that ended the previous answer
  // (end_of_answer()). docs/design/tokenizers.md has every family's framing.
  //
  // Errors  as Tokenizer::encode; kRequest: the model has templates, and none is the default.
  std::vector<TokenId> user_turn(const Turn& turn, bool first) const;
  // The same in two parts, to feed the question separately from the document: everything up to the end of the document,
  // and the rest, starting with the `\n\n\n` between them. Concatenated they are user_turn() of the same text, except
  // that no token spans the boundary. Without a document the first part ends where the question's text starts.
  struct SplitTurn {
    std::vector<TokenId> document, question;
  };
  SplitTurn user_turn_split(const Turn& turn, bool first) const;
  // Ids that close an answer which the engine stopped early, so that another turn can follow.
  std::vector<TokenId> end_of_answer() const;

 private:
  // Tokens that frame a family's turns; absent ones are written as text.
  struct Marks {
    std::optional<TokenId> bos, open, close, user, assistant, end, think;
  };
  // Forms of [INST]: text at first, later a token, with and without spaces; Llama 2 has <<SYS>>.
  struct MistralStyle {
    bool space_after_open = true, space_before_close = true, llama2_system = false;
  };
  struct NamedTemplate {
    std::string name;
    std::shared_ptr<const ChatTemplate> parsed;  // null: `problem` says why
    std::string problem;
  };
  class Writer;
  struct Rendered;  // a turn rendered by the template

  ChatFormat(const Tokenizer& tokenizer, ChatFamily family);
  void use_template(std::string source);
  void read_named_templates();
  void expect_default() const;
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
  std::vector<NamedTemplate> named_;  // beside the default, by name
  bool users_template_ = false, lacks_default_ = false;
  std::string problem_;
  std::vector<TokenId> end_of_answer_;  // from the template
};

}  // namespace mneme
