// Reads an answer as it is written: its thought, its text, its calls of tools.
//
// The events are a function of the bytes: however they are cut, the same texts follow each other. No input is an error;
// what is no call is text. A byte waits only while it may be part of a mark, white space until what follows it is
// known. Time is linear in the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/answer/answer_format.h"
#include "src/text/answer/argument_reader.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

enum class AnswerPart : std::uint8_t { kThought, kText, kCallBegin, kArguments, kCallEnd };

struct AnswerEvent {
  AnswerPart part = AnswerPart::kText;
  std::string text;     // kThought, kText, kArguments: the next piece; kCallBegin: the tool's name
  std::string id;       // kCallBegin: as the model wrote it; empty: it did not
  int call = 0;         // of a call, from 0
  std::size_t end = 0;  // bytes of the answer up to the end of what this event was made of
};

// The tools of a request: types of their arguments, by name.
using AnswerTools = std::unordered_map<std::string, ArgumentTypes>;

// `tools`: as a chat request has them, a list of {"type", "function"}. What is no such tool is left out.
AnswerTools answer_tools_of(const nlohmann::ordered_json& tools);

// A format with its marks in the bytes of a model's answers.
class AnswerMarks {
 public:
  // Marks that the vocabulary holds as special tokens are these tokens.
  AnswerMarks(AnswerFormat format, const Tokenizer& tokenizer);
  // All of them text.
  explicit AnswerMarks(AnswerFormat format);

  const AnswerFormat& format() const { return format_; }  // as it is read: marks trimmed, special tokens between bytes
  const AnswerFormat& shown() const { return shown_; }    // as it was given
  // What a special token adds to the bytes of an answer: its spelling, or nothing where no mark has it.
  std::string_view bytes_of(TokenId special) const;
  // Special tokens that marks have, with their bytes.
  const std::unordered_map<TokenId, std::string>& special_tokens() const { return tokens_; }
  // A special token by its spelling, as the bytes have it; text where the vocabulary has no such token.
  std::string mark_of(std::string_view spelling) const;
  // The prompt ends within a thought: the answer goes on in it.
  bool opens_thought(std::span<const TokenId> prompt, const Tokenizer& tokenizer) const;

 private:
  AnswerFormat shown_, format_;
  std::unordered_map<TokenId, std::string> tokens_;
};

// What a parser of a request's answers is made of.
struct AnswerScope {
  std::shared_ptr<const AnswerMarks> marks;
  bool in_thought = false;  // the prompt has opened one
  bool has_tools = false;   // else calls stay text
  AnswerTools tools;
};

class AnswerParser {
 public:
  struct Setting {
    bool in_thought = false;             // the prompt has opened one
    const AnswerTools* tools = nullptr;  // null: calls stay text
  };
  // Requires  marks and tools outlive the object.
  static std::unique_ptr<AnswerParser> make(const AnswerMarks& marks, const Setting& setting);
  // Requires  the scope outlives the object.
  static std::unique_ptr<AnswerParser> make(const AnswerScope& scope) {
    return make(*scope.marks, {.in_thought = scope.in_thought, .tools = scope.has_tools ? &scope.tools : nullptr});
  }

  virtual ~AnswerParser() = default;
  // Appends to `events` what the bytes decide. They are text, and special tokens as AnswerMarks has them.
  void push(std::string_view bytes, std::vector<AnswerEvent>& events);
  // The answer has ended.
  void finish(std::vector<AnswerEvent>& events);
  bool has_calls() const { return calls_ > 0; }

 protected:
  // One step on what is left of the bytes; false: more of them must decide.
  virtual bool advance(bool last) = 0;
  virtual void end() = 0;

  std::string_view rest() const { return std::string_view(bytes_).substr(at_); }
  void consume(std::size_t n) { at_ += n, read_ += n; }
  // Text between kTokenBegin and kTokenEnd is spelled.
  void emit(AnswerPart part, std::string_view text);
  void begin_call(std::string name, std::string id);
  void add_arguments(std::string_view json);
  void end_call();

 private:
  AnswerEvent& add(AnswerPart part);
  void run(bool last);

  std::string bytes_;
  std::size_t at_ = 0, read_ = 0;
  std::vector<AnswerEvent>* events_ = nullptr;
  int calls_ = 0;
  bool has_arguments_ = false;
};

}  // namespace mneme
