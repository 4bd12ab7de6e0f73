// Answers whose parts stand between marks: every form of calls but Harmony's.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/answer/answer_parser.h"

namespace mneme {

class MarkedParser final : public AnswerParser {
 public:
  MarkedParser(const AnswerFormat& format, const Setting& setting);

 private:
  enum class State : std::uint8_t { kText, kThought, kSection, kId, kName, kNameTail, kArguments, kClose, kObject };
  // What a mark in a text or thought begins or ends. kLeftOver: the end of a call that has ended without it.
  enum class Opens : std::uint8_t { kThought, kThoughtEnd, kSection, kCall, kLeftOver, kNothing };
  struct Opener {
    std::string_view mark;
    Opens opens;
  };

  bool advance(bool last) override;
  void end() override;

  void list_openers();
  bool applies(const Opener& opener) const;
  bool opens_bare(char c) const;
  void open(const Opener& opener, std::size_t length);
  bool read_prose(bool last);
  void give_prose(std::string_view text);
  void open_thought();
  void close_thought();

  void open_candidate(State state, std::size_t length);
  void fail_candidate();
  void take_raw(std::size_t n);
  State first_of_call() const;
  bool skips_in_section(char c) const;
  bool read_section(bool last);
  bool open_call(bool last);
  bool end_section(std::size_t length);
  bool read_id(bool last);
  bool read_name(bool last);
  MarkMatch match_name_end(bool last) const;
  void take_name();

  void commit(std::string name, std::string id);
  bool read_name_tail(bool last);
  bool read_arguments(bool last);
  bool read_close(bool last);
  void begin_object_call();
  bool read_object(bool last);

  const AnswerFormat& format_;
  const AnswerTools* tools_;
  std::vector<Opener> openers_;
  std::array<bool, 256> may_open_{};

  State state_ = State::kText;
  std::string white_;  // behind what was given: what follows tells whether it is text
  std::string raw_;    // of a call that is none yet
  std::string name_, id_, arguments_;
  std::unique_ptr<ArgumentReader> reader_;
  std::unique_ptr<CallObject> object_;
  bool thought_begun_ = false;
  bool has_text_ = false, text_here_ = false;  // was given: at all, and behind the last thought or call
  bool behind_thought_ = false, behind_call_ = false;
  bool in_thought_ = false;  // where a call goes back to that is none
  bool in_section_ = false, section_has_call_ = false, bare_ = false;
  bool committed_ = false, reads_id_ = false;
};

}  // namespace mneme
