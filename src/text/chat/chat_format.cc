#include "src/text/chat/chat_format.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "mneme/error.h"

namespace mneme {
namespace {

constexpr std::string_view kSeparator = "\n\n\n";  // between document and question
constexpr std::string_view kSpaces = " \t\n\r\f\v";

std::string_view trim_left(std::string_view s) {
  return s.substr(std::min(s.find_first_not_of(kSpaces), s.size()));
}
std::string_view trim_right(std::string_view s) {
  return s.substr(0, s.find_last_not_of(kSpaces) + 1);
}
std::string_view trim(std::string_view s) {
  return trim_right(trim_left(s));
}

bool names(const Tokenizer& tokenizer, std::string_view mark) {
  return tokenizer.data().chat_template.find(mark) != std::string::npos;
}

// Every mark is in the vocabulary as a token that text cannot become.
bool has_tokens(const Tokenizer& tokenizer, std::initializer_list<std::string_view> marks) {
  for (const std::string_view mark : marks) {
    const auto id = tokenizer.find(mark);
    if (!id || !tokenizer.is_control(*id)) return false;
  }
  return true;
}

}  // namespace

std::string_view chat_family_name(ChatFamily f) {
  switch (f) {
    case ChatFamily::kNone:
      return "none";
    case ChatFamily::kLlama3:
      return "llama-3";
    case ChatFamily::kChatMl:
      return "chatml";
    case ChatFamily::kMistral:
      return "mistral";
    case ChatFamily::kDeepseekR1:
      return "deepseek-r1";
    case ChatFamily::kNeedle:
      return "needle";
  }
  return "none";
}

// Collects tokens and text. Text between two tokens is encoded in one piece, as in training, except at the split of
// user_turn_split().
class ChatFormat::Writer {
 public:
  Writer(const Tokenizer& tokenizer, bool split) : tokenizer_(tokenizer), split_(split) {}

  void token(std::optional<TokenId> id) {
    flush();
    if (id) parts_[part_].push_back(*id);
    after_tokens_ = after_tokens_ || (id && id != tokenizer_.bos());
    continues_ = false;
  }
  void text(std::string_view text) { pending_ += text; }
  void seam() {
    if (!split_ || part_ == 1) return;
    flush();
    part_ = 1;
  }
  // The text continues the model's answer.
  void continue_text() { continues_ = after_tokens_ = true; }

  // The user's text. Without a document the split is before the question.
  void words(const Turn& turn) {
    if (!turn.document.empty()) text(turn.document);
    seam();
    if (!turn.document.empty() && !turn.question.empty()) text(kSeparator);
    text(turn.question);
  }

  SplitTurn finish() {
    flush();
    return {std::move(parts_[0]), std::move(parts_[1])};
  }

 private:
  void flush() {
    if (pending_.empty()) return;
    const auto ids = tokenizer_.encode(
        pending_, {.parse_special = false, .add_bos = false, .continues = continues_, .after_tokens = after_tokens_});
    parts_[part_].insert(parts_[part_].end(), ids.begin(), ids.end());
    pending_.clear();
    continues_ = after_tokens_ = true;
  }

  const Tokenizer& tokenizer_;
  bool split_;
  std::size_t part_ = 0;
  std::array<std::vector<TokenId>, 2> parts_;
  std::string pending_;
  bool continues_ = false;
  bool after_tokens_ = false;
};

ChatFormat ChatFormat::detect(const Tokenizer& t) {
  auto family = ChatFamily::kNone;
  if (names(t, "<｜User｜>") && has_tokens(t, {"<｜User｜>", "<｜Assistant｜>"})) {
    family = ChatFamily::kDeepseekR1;
  } else if (names(t, "<|start_header_id|>") &&
             has_tokens(t, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})) {
    family = ChatFamily::kLlama3;
  } else if (names(t, "<|im_start|>") && has_tokens(t, {"<|im_start|>", "<|im_end|>"})) {
    family = ChatFamily::kChatMl;
  } else if (names(t, "<|user|>") && names(t, "<|assistant|>") &&
             has_tokens(t, {"<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"})) {
    family = ChatFamily::kNeedle;
  } else if (names(t, "[INST]") && t.bos() && t.eos()) {
    family = ChatFamily::kMistral;
  }
  ChatFormat format(t, family);
  format.read_named_templates();
  if (t.data().chat_template.empty() || family == ChatFamily::kNeedle) return format;
  try {
    format.use_template(t.data().chat_template);
  } catch (const Error& e) {
    format.problem_ = e.what();
  }
  return format;
}

ChatFormat::ChatFormat(const Tokenizer& t, ChatFamily family) : tokenizer_(&t), family_(family) {
  marks_.bos = t.bos();
  switch (family) {
    case ChatFamily::kNone:
      break;
    case ChatFamily::kLlama3:
      marks_.open = t.find("<|start_header_id|>");
      marks_.close = t.find("<|end_header_id|>");
      marks_.end = t.find("<|eot_id|>");
      break;
    case ChatFamily::kChatMl:
      marks_.open = t.find("<|im_start|>");
      marks_.end = t.find("<|im_end|>");
      break;
    case ChatFamily::kMistral: {
      if (has_tokens(t, {"[INST]", "[/INST]"})) {
        marks_.open = t.find("[INST]");
        marks_.close = t.find("[/INST]");
      }
      marks_.end = t.eos();
      mistral_.llama2_system = names(t, "<<SYS>>");
      const bool sentencepiece = t.data().kind == TokenizerKind::kSentencePiece;
      // "▁Hello" follows the token [INST] in SentencePiece models; Tekken ones write "[INST]Hello".
      mistral_.space_after_open = !marks_.open || (sentencepiece ? !t.data().add_space_prefix : names(t, "[INST] "));
      mistral_.space_before_close = !marks_.close || names(t, " [/INST]");
      break;
    }
    case ChatFamily::kDeepseekR1:
      marks_.user = t.find("<｜User｜>");
      marks_.assistant = t.find("<｜Assistant｜>");
      marks_.end = t.find("<｜end▁of▁sentence｜>");
      if (!marks_.end) marks_.end = t.eos();
      marks_.think = t.find("<think>");
      break;
    case ChatFamily::kNeedle:
      marks_.bos = t.find("<|bos|>");
      marks_.user = t.find("<|user|>");
      marks_.assistant = t.find("<|assistant|>");
      marks_.end = t.find("<|end|>");
      break;
  }
}

std::vector<TokenId> ChatFormat::user_turn(const Turn& turn, bool first) const {
  expect_default();
  if (template_ != nullptr) return template_turn(turn, first, false).document;
  Writer writer(*tokenizer_, false);
  write_turn(writer, turn, first);
  return writer.finish().document;
}

ChatFormat::SplitTurn ChatFormat::user_turn_split(const Turn& turn, bool first) const {
  expect_default();
  if (template_ != nullptr) return template_turn(turn, first, true);
  Writer writer(*tokenizer_, true);
  write_turn(writer, turn, first);
  return writer.finish();
}

std::vector<TokenId> ChatFormat::end_of_answer() const {
  if (template_ != nullptr) return end_of_answer_;
  return marks_.end ? std::vector<TokenId>{*marks_.end} : std::vector<TokenId>{};
}

void ChatFormat::write_turn(Writer& out, const Turn& turn, bool first) const {
  switch (family_) {
    case ChatFamily::kNone:
      return write_plain(out, turn, first);
    case ChatFamily::kLlama3:
      return write_llama3(out, turn, first);
    case ChatFamily::kChatMl:
      return write_chatml(out, turn, first);
    case ChatFamily::kMistral:
      return write_mistral(out, turn, first);
    case ChatFamily::kDeepseekR1:
      return write_deepseek(out, turn, first);
    case ChatFamily::kNeedle:
      return write_needle(out, turn, first);
  }
}

// Source  the chat_template of Llama-3.1-8B-Instruct, without its "Cutting Knowledge Date" preamble. It trims every
//         message.
void ChatFormat::write_llama3(Writer& out, Turn turn, bool first) const {
  auto header = [&](std::string_view role) {
    out.token(marks_.open);
    out.text(role);
    out.token(marks_.close);
    out.text("\n\n");
  };
  if (first) out.token(marks_.bos);
  if (first && !turn.system.empty()) {
    header("system");
    out.text(trim(turn.system));
    out.token(marks_.end);
  }
  turn.document = trim_left(turn.document);
  turn.question = trim_right(turn.question);
  if (turn.document.empty()) turn.question = trim_left(turn.question);
  if (turn.question.empty()) turn.document = trim_right(turn.document);
  header("user");
  out.words(turn);
  out.token(marks_.end);
  header("assistant");
}

// Source  the chat_template of Qwen2.5-7B-Instruct, without its default system turn. A newline follows every
//         <|im_end|>; the model stops before it, so a later turn starts with it.
void ChatFormat::write_chatml(Writer& out, const Turn& turn, bool first) const {
  if (first && tokenizer_->adds_bos()) out.token(marks_.bos);
  if (!first) out.text("\n");
  if (first && !turn.system.empty()) {
    out.token(marks_.open);
    out.text("system\n");
    out.text(turn.system);
    out.token(marks_.end);
    out.text("\n");
  }
  out.token(marks_.open);
  out.text("user\n");
  out.words(turn);
  out.token(marks_.end);
  out.text("\n");
  out.token(marks_.open);
  out.text("assistant\n");
}

// Source  the chat_template of Mistral-7B-Instruct v0.1 and v0.2 ([INST] is text), v0.3 ([INST] is a token),
// Mistral-Nemo (the same without the space), Llama-2-7b-chat (<<SYS>>).
void ChatFormat::write_mistral(Writer& out, const Turn& turn, bool first) const {
  if (first) out.token(marks_.bos);
  if (marks_.open) {
    out.token(marks_.open);
  } else {
    out.text("[INST]");
  }
  if (mistral_.space_after_open) out.text(" ");
  if (first && !turn.system.empty()) {
    if (mistral_.llama2_system) out.text("<<SYS>>\n");
    out.text(turn.system);
    out.text(mistral_.llama2_system ? "\n<</SYS>>\n\n" : "\n\n");
  }
  out.words(turn);
  if (mistral_.space_before_close) out.text(" ");
  if (marks_.close) {
    out.token(marks_.close);
  } else {
    out.text("[/INST]");
  }
}

// Source  the chat_template of DeepSeek-R1-Distill-Llama-8B and -Qwen-7B: the system text has no turn of its own, and
//         the answer starts with thinking.
void ChatFormat::write_deepseek(Writer& out, const Turn& turn, bool first) const {
  if (first) {
    out.token(marks_.bos);
    out.text(turn.system);
  }
  out.token(marks_.user);
  out.words(turn);
  out.token(marks_.assistant);
  if (marks_.think) {
    out.token(marks_.think);
  } else {
    out.text("<think>");
  }
  out.text("\n");
}

// Source  the README of the shipped model: the first turn has no newline after <|user|>, later ones do.
void ChatFormat::write_needle(Writer& out, const Turn& turn, bool first) const {
  if (first) out.token(marks_.bos);
  out.token(marks_.user);
  if (!first) out.text("\n");
  if (first && !turn.system.empty()) {
    out.text(turn.system);
    out.text("\n\n");
  }
  out.words(turn);
  out.token(marks_.end);
  out.token(marks_.assistant);
}

void ChatFormat::write_plain(Writer& out, const Turn& turn, bool first) const {
  if (first && tokenizer_->adds_bos()) out.token(marks_.bos);
  if (!first) {
    out.continue_text();
    out.text("\n\n");
  }
  if (first && !turn.system.empty()) {
    out.text(turn.system);
    out.text("\n\n");
  }
  out.words(turn);
}

}  // namespace mneme
