// What an answer may consist of, as steps that follow each other: a program for AnswerMatcher.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/text/answer_grammar/mark_watch.h"
#include "src/text/grammar/json_matcher.h"

namespace mneme {

using StepId = std::int32_t;

// Text of any kind, until a mark begins something else.
struct Prose {
  struct Exit {
    StepId to = 0;
    bool at_start = false;  // only where nothing but white space precedes the mark
  };
  MarkWatch watch;
  std::vector<Exit> exits;  // by mark
  bool thought = false;
  bool may_end = true;  // the answer may end in it
};

struct AnswerStep {
  enum class Kind : std::uint8_t {
    kText,     // these bytes
    kWhite,    // white space, or none
    kWord,     // letters, digits, "_", "-", and those of `text`
    kSplit,    // any of the ways
    kMembers,  // members of an object, none twice; next when all that are required are there
    kJson,     // a value, of which `text` was there before
    kProse,
    kEnd,  // the answer may end, and nothing follows
  };
  Kind kind = Kind::kSplit;
  StepId next = -1;
  std::string text;
  std::vector<StepId> ways;  // kMembers: by property, each ends at this step again
  StepId other = -1;         // kMembers: a member that is not declared; -1: there is none

  std::shared_ptr<const JsonMatcher> json;  // kJson: the value is of `node`; kMembers: `node` is the object
  NodeId node = kNoNode;

  std::uint32_t least = 1, most = 40;      // kWord: bytes
  bool digits = false;                     // kWord: of digits alone
  std::shared_ptr<const ByteTree> except;  // kWord: what it is not; null: nothing
  std::shared_ptr<const Prose> prose;
};

// White space between parts of a call: at most so many newlines and blanks.
inline constexpr std::uint32_t kMaxLines = 2, kMaxBlanks = 8;

struct AnswerProgram {
  std::vector<AnswerStep> steps;
  StepId begin = 0;
};

}  // namespace mneme
