// Arguments of one call, as a model writes them, to the text of a JSON object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/text/answer/answer_format.h"
#include "src/text/answer/mark.h"

namespace mneme {

// What the schema of a tool says of an argument's type. kAny: nothing, or a string among others.
enum class ArgumentType : std::uint8_t { kString, kOther, kAny };

using ArgumentTypes = std::unordered_map<std::string, ArgumentType>;

class ArgumentReader {
 public:
  enum class State : std::uint8_t { kMore, kDone };
  struct Step {
    std::size_t read = 0;  // bytes of the text
    State state = State::kMore;
  };
  virtual ~ArgumentReader() = default;
  // Appends to `json` what `text` adds to it. Bytes that are not read are given again with those that follow; at most
  // a mark and some white space are left. kDone: complete, or what follows is no argument. `last`: nothing follows.
  virtual Step read(std::string_view text, bool last, std::string& json) = 0;
};

// A JSON value, byte by byte as it is written. What cannot be JSON ends it.
class JsonArguments final : public ArgumentReader {
 public:
  Step read(std::string_view text, bool last, std::string& json) override;

 private:
  std::int64_t depth_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false, scalar_ = false;
};

// A mark before each key, and one behind each value.
class TaggedArguments final : public ArgumentReader {
 public:
  // `followers`: what else may follow a value. Requires  all outlive the object.
  TaggedArguments(const ArgumentMarks& marks, std::vector<std::string_view> followers, const ArgumentTypes& types)
      : marks_(marks), followers_(std::move(followers)), types_(types) {}
  Step read(std::string_view text, bool last, std::string& json) override;

 private:
  enum class Where : std::uint8_t { kBetween, kKey, kAttributes, kValue, kEnd };
  Step read_some(std::string_view text, bool last, std::string& json);
  Step read_between(std::string_view text, bool last, std::string& json);
  Step read_until(std::string_view mark, std::string_view text, bool last, std::string& to);
  Step read_value(std::string_view text, bool last, std::string& json);
  void begin_value(std::string& json);
  void end_value(std::string& json);
  void end_all(std::string& json);
  void take(std::string_view text, std::string& json);
  Found ends_value(std::string_view behind, bool last) const;

  const ArgumentMarks& marks_;
  std::vector<std::string_view> followers_;
  const ArgumentTypes& types_;
  Where where_ = Where::kBetween;
  ArgumentType type_ = ArgumentType::kAny;
  std::string key_, attributes_, value_, value_end_;
  std::unordered_set<std::string> keys_;
  bool any_ = false, repeated_ = false, at_line_ = false, held_line_ = false;
};

// Gemma's {key:value} and Python's key=value: literals that become JSON.
class NotationArguments final : public ArgumentReader {
 public:
  // quote: on both sides of a string; empty: Python's quotes and literals.
  explicit NotationArguments(std::string_view quote) : quote_(quote) {}
  Step read(std::string_view text, bool last, std::string& json) override;

 private:
  enum class Where : std::uint8_t { kStart, kKey, kColon, kValue, kBare, kString, kEscape, kBehind };
  struct Frame {
    char close;
    bool members;  // else elements
    bool any = false;
  };
  Step read_byte(std::string_view text, bool last, std::string& json);
  Step read_key(std::string_view text, bool last, std::string& json);
  Step read_value(std::string_view text, bool last, std::string& json);
  Step read_string(std::string_view text, bool last, std::string& json);
  Step read_escape(char c, std::string& json);
  Step open_string(std::string_view text, bool last, bool element, std::string& json);
  Step behind(char c, std::string& json);
  Step close(char c, std::string& json);
  void end_bare(std::string& json);
  void begin_element(std::string& json);
  bool python() const { return quote_.empty(); }

  std::string_view quote_;
  std::vector<Frame> frames_;
  Where where_ = Where::kStart;
  std::string bare_, escape_;
  char python_quote_ = 0;
  bool key_string_ = false;
};

// A call as one JSON object, which holds its name: reads the name and id, and gives out the arguments.
class CallObject {
 public:
  explicit CallObject(const CallKeys& keys) : keys_(keys) {}
  enum class State : std::uint8_t { kMore, kDone, kBroken };
  struct Step {
    std::size_t read = 0;
    State state = State::kMore;
    bool paused = false;  // more of the text may be read
  };
  // As ArgumentReader::read; pauses behind each member and before the arguments, so that what is known of the call
  // then does not depend on how the text was cut.
  Step read(std::string_view text, bool last, std::string& arguments);
  const std::string& name() const { return name_; }
  const std::string& id() const { return id_; }
  bool has_arguments() const { return has_arguments_; }

 private:
  enum class Where : std::uint8_t { kStart, kKeyOrEnd, kKey, kColon, kValue, kBehind };
  enum class Member : std::uint8_t { kName, kId, kArguments, kOther };
  Step read_some(std::string_view text, bool last, std::string& arguments);
  Step read_member(std::string_view text, bool last, std::string& arguments);
  void end_member(std::string& arguments);
  Member member_of(const std::string& key) const;

  const CallKeys& keys_;
  Where where_ = Where::kStart;
  Member member_ = Member::kOther;
  std::unique_ptr<JsonArguments> value_;
  std::string scratch_, name_, id_;
  bool has_arguments_ = false, text_arguments_ = false;
};

// `text` as a JSON string's inside.
void append_escaped(std::string_view text, std::string& json);

}  // namespace mneme
